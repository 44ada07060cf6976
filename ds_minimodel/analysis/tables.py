"""The paper's tables 2 and 3 for one's own run, its costs and losses, as data; render.py prints them."""

import math
import statistics
from dataclasses import dataclass, field
from typing import NamedTuple

from ds_minimodel.analysis.curves import AVERAGE, BASELINE, mean_compute, speedup
from ds_minimodel.analysis.display import SYSTEM_NAMES, flops_unit, in_order, v100_unit

LAST_SHARE = 0.05  # share of a run over which its final loss is averaged


class Cell(NamedTuple):
    """One entry: what is said, what qualifies it (± or bounds), and whether it is the best of its column."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """`rows` are systems, `references` what they compare with; both hold one Cell for each of `columns`."""

    title: str
    columns: list
    rows: list
    references: list = field(default_factory=list)
    notes: list = field(default_factory=list)


EMPTY = Cell("–")


def tasks_of(curves):
    return list(dict.fromkeys(task for _, task, _ in curves))


def systems_of(curves, task=None):
    return in_order(system for system, of_task, _ in curves if task in (None, of_task))


def languages_of(curves, task):
    """Languages that `task` was scored in, without the average."""
    return list(dict.fromkeys(language for _, of_task, language in curves
                              if of_task == task and language != AVERAGE))


def adapt_costs(costs):
    """{system: EFLOPs of step 2 for one language, by the paper's formula} from the rows of recipe_costs."""
    return {row["system"]: row["formula_eflops"] for row in costs if row["step"] == "adapt"}


def summary_table(curves, estimates, costs):
    """What the paper's section 4.1 and Figure 1 say: score retained, cost, and speedup by task."""
    tasks, spent = tasks_of(curves), adapt_costs(costs)
    unit = v100_unit(max(spent.values(), default=0))
    rows = []
    for system in systems_of(curves):
        retained = [_final(curves, system, task) / _final(curves, BASELINE, task) for task in tasks
                    if _final(curves, system, task) is not None and _final(curves, BASELINE, task)]
        cost = spent.get(system)
        rows.append([Cell(SYSTEM_NAMES[system]), EMPTY if cost is None else Cell(unit.of(cost)),
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
    """Cells of one system's speedups, one for each task, and their mean where there are several tasks."""
    means = [result.mean for result in results if result.mean is not None]
    mean = _times(statistics.fmean(means) if means else None, *results)
    return [*(_times(result.mean, result) for result in results), *([mean] if len(results) > 1 else [])]


def _final(curves, system, task, language=AVERAGE):
    """Score at training completion, or None where the system has none."""
    curve = curves.get((system, task, language))
    return curve[-1].mean if curve else None


def _percent(part, whole):
    return Cell(f"{100 * part / whole:.1f} %") if part is not None and whole else EMPTY


def _times(mean, *results):
    """Cell of a mean speedup; where `results` leave languages out, how many ratios it is the mean of."""
    if mean is None:
        return EMPTY
    num_ratios = sum(len(result.by_language) for result in results)
    num_excluded = sum(len(result.excluded) for result in results)
    return Cell(f"{mean:.2f}×", f"({num_ratios}/{num_ratios + num_excluded})" if num_excluded else "")


def final_scores_table(task, curves, costs, baselines=()):
    """Table 2 for one task: training cost, and the score at training completion in each language.

    baselines: rows {"baseline", "task", "language", "score"}, such as the majority class. They and the scores
    before any training (step 0: unadapted embeddings) are the references.
    """
    systems, columns = systems_of(curves, task), [*languages_of(curves, task), AVERAGE]
    spent = adapt_costs(costs)
    flops, days = flops_unit(max(spent.values(), default=0)), v100_unit(max(spent.values(), default=0))
    best = {language: max((_final(curves, system, task, language) for system in systems
                           if (system, task, language) in curves), default=None) for language in columns}
    rows, unadapted = [], []
    for system in systems:
        last = {language: curves[system, task, language][-1] for language in columns
                if (system, task, language) in curves}
        cost = [Cell(unit.of(spent[system])) if system in spent else EMPTY for unit in (flops, days)]
        rows.append([Cell(SYSTEM_NAMES[system]), *cost,
                     *(_score(last.get(language), best[language]) for language in columns)])
        first = {language: curves[system, task, language][0] for language in last}
        if first and all(point.step == 0 for point in first.values()):
            unadapted.append([Cell(f"{SYSTEM_NAMES[system]}, unadapted"), EMPTY, EMPTY,
                              *(_score(first.get(language)) for language in columns)])
    references = [[Cell(name), EMPTY, EMPTY, *cells]
                  for name, cells in _baseline_rows(task, columns, baselines)]
    return Table(f"{task}: performance at training completion",
                 ["System", flops.name, days.name, *columns], rows, references + unadapted,
                 [_completion_note(task, curves)])


def _completion_note(task, curves):
    """After how many updates and with how many seeds the final scores of `task` were taken."""
    ends = [curve[-1] for (_, of_task, _), curve in curves.items() if of_task == task]
    num_seeds = _range(point.num_seeds for point in ends)
    over_seeds = ("One finetuning seed." if num_seeds == "1"
                  else f"Mean ± standard deviation over {num_seeds} finetuning seeds.")
    return f"After {_range(point.step for point in ends)} updates of step 2. {over_seeds}"


def _range(numbers):
    smallest, largest = min(numbers := list(numbers)), max(numbers)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def _score(point, best=None):
    if point is None:
        return EMPTY
    return Cell(f"{point.mean:.1f}", "" if point.std is None else f"±{point.std:.1f}", point.mean == best)


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
        rows.append([Cell(SYSTEM_NAMES[system]),
                     *(_estimate(estimates.get((system, task, language)), days, best[language])
                       for language in languages), *averages, _times(result.mean, result)])
    notes = ["Near-maximal performance is 95 % of BL_BASE's score at training completion, for every system. "
             "Interpolated linearly between the checkpoints before and after, whose compute is in brackets. "
             "∞: never reached."]
    if starred:
        notes.append("*: without the languages that never reach it.")
    return Table(f"{task}: {days.name} to near-maximal performance",
                 ["System", *languages, f"{AVERAGE}, {days.name}", f"{AVERAGE}, {flops.name}", "speedup"],
                 rows, notes=notes)


def _estimate(estimate, unit, best):
    if estimate is None:
        return EMPTY
    if estimate.eflops == math.inf:
        return Cell("∞")
    return Cell(unit.of(estimate.eflops), f"({unit.of(estimate.lower)}–{unit.of(estimate.upper)})",
                estimate.eflops == best)


def cost_table(costs):
    """Cost of every step: the paper's formula, V100 time by it, and what this implementation executes."""
    largest = max((row["formula_eflops"] for row in costs), default=0)
    flops, days = flops_unit(largest), v100_unit(largest)
    rows = [[Cell(SYSTEM_NAMES[row["system"]]), Cell(row["step"]), Cell(flops.of(row["formula_eflops"])),
             Cell(days.of(row["formula_eflops"])), Cell(flops.of(row["executed_eflops"])),
             Cell(f"{row['executed_eflops'] / row['formula_eflops']:.2f}")] for row in costs]
    notes = ["Formula: the paper's appendix A.1, and V100 time by it at 30 TFLOP/s. Executed: the matrix "
             "products that run here. Both are computed from the sizes, not measured. adapt is the cost of "
             "one language; MiniPost's pretraining is BL_BASE's and is paid once."]
    if costs and not any(row["step"] == "pretrain" for row in costs):
        notes.append("The body was pretrained elsewhere: what that took is not known and not counted.")
    return Table("Cost of each step", ["System", "Step", f"formula, {flops.name}", days.name,
                                       f"executed, {flops.name}", "executed ÷ formula"], rows, notes=notes)


def loss_table(losses):
    """Final training loss of every step; loss rows as in losses.py."""
    runs = {}
    for row in losses:
        runs.setdefault((row["system"], row["stage"], row["language"]), []).append(row)
    stages = in_order((stage for _, stage, _ in runs), ["pretrain", "build-mini", "adapt"])
    columns = list(dict.fromkeys((stage, language) for stage in stages for _, of_stage, language in runs
                                 if of_stage == stage))
    rows = [[Cell(SYSTEM_NAMES[system]), *(_final_loss(runs.get((system, *column))) for column in columns)]
            for system in in_order(system for system, _, _ in runs)]
    notes = ["Mean training loss (nats a masked token, mean over heads) over the last "
             f"{LAST_SHARE:.0%} of the steps. Each language has a vocabulary of its own: losses compare "
             "within a language only."]
    return Table("Masked-language-model loss",
                 ["System", *(f"{stage} {language}" for stage, language in columns)], rows, notes=notes)


def _final_loss(rows):
    if rows is None:
        return EMPTY
    start = (1 - LAST_SHARE) * max(row["step"] for row in rows)
    return Cell(f"{statistics.fmean(row['loss'] for row in rows if row['step'] >= start):.3f}")
