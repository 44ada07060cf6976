"""The paper's tables 2, 3 and 5 for one's own runs, and the speedups of its Figure 1, as data.

Tables A2 and A1 are 2 and 3 for XQuAD and made by the same functions.
"""

import math
import statistics

from ds_minimodel.analysis.curves import AVERAGE, BASELINE, mean_compute, speedup
from ds_minimodel.analysis.display import flops_unit, in_order, name_of, numbered, system_of, v100_unit
from ds_minimodel.analysis.table import (EMPTY, Cell, Table, adapt_costs, estimate_cell, final_score,
                                         languages_of, score_cell, systems_of, tasks_of)


def summary_table(curves, estimates, costs):
    """What the paper's section 4.1 and Figure 1 say: score retained, cost, and speedup by task."""
    tasks, spent = tasks_of(curves), adapt_costs(costs)
    unit = v100_unit(max(spent.values(), default=0))
    rows = []
    for system in systems_of(curves):
        retained = [final_score(curves, system, task) / final_score(curves, BASELINE, task) for task in tasks
                    if final_score(curves, system, task) is not None and final_score(curves, BASELINE, task)]
        cost = spent.get(system)
        rows.append([Cell(name_of(system)), EMPTY if cost is None else Cell(unit.of(cost)),
                     _percent(cost, spent.get(BASELINE)),
                     _percent(statistics.fmean(retained), 1) if retained else EMPTY,
                     *_speedups([speedup(estimates, system, task) for task in tasks])])
    notes = ["Score retained: the system's average final score over BL_BASE's, mean over tasks.",
             "Speedup: BL_BASE's compute to near-maximal performance over the system's, a ratio for each "
             "language, then their mean (the paper's Figure 1 and footnote 6). (k/n): only k of n languages "
             "have a ratio; the others never reach the target, or reach it before any training."]
    columns = ["System", f"step 2, {unit.name} a language", "of BL_BASE's cost", "score retained",
               *(f"speedup {task}" for task in tasks), *(["speedup, mean"] if len(tasks) > 1 else [])]
    return Table("Summary", columns, rows, notes=notes)


def _speedups(results):
    """Cells of one system's speedups: one a task, and their mean where each of several tasks has one."""
    cells, means = [_times(result.mean, result) for result in results], [result.mean for result in results]
    if len(results) > 1:
        cells.append(_times(None if None in means else statistics.fmean(means), *results))
    return cells


def _percent(part, whole):
    return Cell(f"{100 * part / whole:.1f} %") if part is not None and whole else EMPTY


def _times(mean, *results):
    """Cell of a mean speedup; where `results` leave languages out, how many ratios it is the mean of."""
    if mean is None:
        return EMPTY
    num_ratios = sum(len(result.by_language) for result in results)
    num_excluded = sum(len(result.excluded) for result in results)
    return Cell(f"{mean:.2f}×", f"({num_ratios}/{num_ratios + num_excluded})" if num_excluded else "")


def final_scores_table(task, metric, curves, costs, baselines=()):
    """Table 2 for one task: training cost, and the score at training completion in each language.

    metric: what the scores are, such as "accuracy". baselines: rows {"baseline", "task", "language",
    "score"}, such as the majority class. They and the scores before any training (step 0: unadapted
    embeddings) are the references.
    """
    systems, columns = systems_of(curves, task), [*languages_of(curves, task), AVERAGE]
    spent = adapt_costs(costs)
    flops, days = flops_unit(max(spent.values(), default=0)), v100_unit(max(spent.values(), default=0))
    best = {language: max((final_score(curves, system, task, language) for system in systems
                           if (system, task, language) in curves), default=None) for language in columns}
    rows, unadapted = [], []
    for system in systems:
        last = {language: curves[system, task, language][-1] for language in columns
                if (system, task, language) in curves}
        cost = [Cell(unit.of(spent[system])) if system in spent else EMPTY for unit in (flops, days)]
        rows.append([Cell(name_of(system)), *cost,
                     *(score_cell(last.get(language), best[language]) for language in columns)])
        first = {language: curves[system, task, language][0] for language in last}
        if system == system_of(system) and first and all(point.step == 0 for point in first.values()):
            unadapted.append([Cell(f"{name_of(system)}, unadapted"), EMPTY, EMPTY,
                              *(score_cell(first.get(language)) for language in columns)])
    references = [[Cell(name), EMPTY, EMPTY, *cells]
                  for name, cells in _baseline_rows(task, columns, baselines)]
    return Table(f"{numbered('Table 2', task)}: performance at training completion, {metric}",
                 ["System", flops.name, days.name, *columns], rows, references + unadapted,
                 [_completion_note(task, curves)])


def _completion_note(task, curves):
    """After how many updates and with how many seeds the final scores of `task` were taken."""
    ends = [curve[-1] for (_, of_task, language), curve in curves.items()
            if of_task == task and language != AVERAGE]
    num_seeds = _range(len(point.by_seed) for point in ends)
    over_seeds = ("One finetuning seed." if num_seeds == "1"
                  else f"Mean ± standard deviation over {num_seeds} finetuning runs.")
    return (f"Bold: the best. After {_range(point.step for point in ends)} updates of step 2; cost of step 2 "
            f"for one language. {over_seeds}")


def _range(numbers):
    smallest, largest = min(numbers := list(numbers)), max(numbers)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def _baseline_rows(task, columns, baselines):
    """(name, cells) of each baseline that was scored on the task; its average only over all the languages."""
    by_name = {}
    for row in baselines:
        if row["task"] == task:
            by_name.setdefault(row["baseline"], {})[row["language"]] = row["score"]
    for name, scores in by_name.items():
        languages = [language for language in columns if language != AVERAGE]
        if all(language in scores for language in languages):
            scores[AVERAGE] = statistics.fmean(scores[language] for language in languages)
        yield name, [Cell(f"{scores[language]:.1f}") if language in scores else EMPTY for language in columns]


def near_maximal_table(task, curves, estimates):
    """Table 3 for one task: V100 time to 95 % of bl_base's final score, with the bounds of the estimate."""
    languages = languages_of(curves, task)
    finite = [estimate.upper for (_, of_task, language), estimate in estimates.items()
              if of_task == task and language in languages and estimate.upper < math.inf]
    days, flops = v100_unit(max(finite, default=0)), flops_unit(max(finite, default=0))
    systems = in_order(system for system, of_task, _ in estimates if of_task == task)
    best = {language: min((estimates[system, task, language].eflops for system in systems
                           if (system, task, language) in estimates), default=None) for language in languages}
    rows, starred = [], False
    for system in systems:
        mean, never = mean_compute(estimates, system, task)
        averages = [Cell("∞")] * 2
        if mean is not None:
            starred = starred or bool(never)
            averages = [Cell(unit.of(mean) + ("*" if never else "")) for unit in (days, flops)]
        result = speedup(estimates, system, task)
        rows.append([Cell(name_of(system)),
                     *(estimate_cell(estimates.get((system, task, language)), days, best[language])
                       for language in languages), *averages, _times(result.mean, result)])
    notes = ["Near-maximal performance is 95 % of BL_BASE's score at training completion, for every system. "
             "Interpolated linearly between the checkpoints before and after, whose compute is in brackets. "
             "∞: never reached."]
    if starred:
        notes.append("*: without the languages that never reach it.")
    return Table(f"{numbered('Table 3', task)}: {days.name} to near-maximal performance",
                 ["System", *languages, f"{AVERAGE}, {days.name}", f"{AVERAGE}, {flops.name}", "speedup"],
                 rows, notes=notes)


def source_table(source, curves):
    """Table 5: final scores in the source language, by system and task; `curves` hold that language's."""
    tasks = tasks_of(curves)
    best = {task: max(final_score(curves, system, task, source) for system in systems_of(curves, task))
            for task in tasks}
    rows = [[Cell(name_of(system)),
             *(score_cell(curves[system, task, source][-1], best[task]) if (system, task, source) in curves
               else EMPTY for task in tasks)] for system in systems_of(curves)]
    notes = ["With the source language's own embeddings, after finetuning on the source language. MiniPost's "
             "primary model is BL_BASE's."]
    title = f"Table 5: performance in the source language, {source}"
    return Table(title, ["System", *tasks], rows, notes=notes)
