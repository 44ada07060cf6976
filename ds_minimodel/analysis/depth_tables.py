"""What the depth of the mini-model does (the paper's tables A3, A4, Figure 4), and the pretraining seed (A5).

`depths` is {depth: variant}: the variants of one system that differ in the mini-model's depth alone.
"""

import math
import statistics

from ds_minimodel.analysis.curves import AVERAGE, BASELINE, training_curves, with_language_average
from ds_minimodel.analysis.display import in_order, name_of, system_of, v100_unit
from ds_minimodel.analysis.table import (EMPTY, Cell, Table, adapt_costs, estimate_cell, languages_of,
                                         score_cell, tasks_of)


def depth_curves(rows, depths):
    """Curves of the variants in `depths`, and of bl_base, in the languages that all the variants have.

    So the averages over languages compare: a depth is often tried in few languages.
    """
    shared = _in_all(rows, depths.values(), lambda row: row["system"])
    return with_language_average(training_curves(
        row for row in rows
        if (row["task"], row["language"]) in shared and row["system"] in (BASELINE, *depths.values())))


def _in_all(rows, groups, group_of):
    """The (task, language) that each of `groups` has rows of."""
    found = {group: set() for group in groups}
    for row in rows:
        if group_of(row) in found:
            found[group_of(row)].add((row["task"], row["language"]))
    return set.intersection(*found.values())


def depth_scores_table(depths, curves, costs):
    """Table A3: cost, and score at training completion averaged over languages, by depth."""
    tasks, spent = tasks_of(curves), adapt_costs(costs)
    unit = v100_unit(max(spent.values(), default=0))
    finals = {variant: [curves[variant, task, AVERAGE][-1] if (variant, task, AVERAGE) in curves else None
                        for task in tasks] for variant in (*depths.values(), BASELINE)}
    best = [max((finals[variant][number].mean for variant in depths.values() if finals[variant][number]),
                default=None) for number in range(len(tasks))]

    def row(label, variant):
        cost = Cell(unit.of(spent[variant])) if variant in spent else EMPTY
        marks = best if variant != BASELINE else [None] * len(tasks)
        return [Cell(label), cost, *map(score_cell, finals[variant], marks)]

    notes = ["N: layers of the primary model in the mini-model. Averaged over languages "
             f"({_languages(curves)}); cost of step 2 for one language."]
    references = [row("BL_BASE", BASELINE)] if any(finals[BASELINE]) else []
    return Table(f"Table A3: {_system(depths)} at training completion by depth of the mini-model",
                 ["N", f"step 2, {unit.name}", *tasks],
                 [row(str(depth), variant) for depth, variant in depths.items()], references, notes)


def depth_estimates_table(depths, estimates, curves):
    """Table A4 (and 4): V100 time to near-maximal performance by language, task and depth, with bounds."""
    keys = [(task, language) for language in _languages_in_order(curves) for task in tasks_of(curves)
            if (BASELINE, task, language) in estimates]
    variants = [*depths.values(), BASELINE]
    unit = v100_unit(max((estimates[variant, *key].upper for variant in variants for key in keys
                          if estimates[variant, *key].upper < math.inf), default=0))
    rows = []
    for task, language in keys:
        best = min(estimates[variant, task, language].eflops for variant in depths.values())
        rows.append([Cell(f"{language} {task}"),
                     *(estimate_cell(estimates[variant, task, language], unit, best)
                       for variant in depths.values()),
                     estimate_cell(estimates[BASELINE, task, language], unit)])
    notes = ["Near-maximal performance is 95 % of BL_BASE's score at training completion. In brackets the "
             "compute of the checkpoints before and after. ∞: never reached."]
    return Table(f"Table A4: {unit.name} to near-maximal performance of {_system(depths)} by depth of the "
                 "mini-model", ["", *(f"N = {depth}" for depth in depths), "BL_BASE"], rows, notes=notes)


def seeds_table(rows):
    """Table A5: final scores by pretraining run, each the mean over its finetuning seeds and over languages.

    The seeds of `rows` are pairs (seed of the run, finetuning seed). None where no system has two runs.
    """
    tasks, printed = list(dict.fromkeys(row["task"] for row in rows)), []
    for system in in_order(row["system"] for row in rows):
        of_system = [row for row in rows if row["system"] == system]
        runs = sorted({row["seed"][0] for row in of_system})
        if len(runs) > 1:
            shared = _in_all(of_system, runs, lambda row: row["seed"][0])
            printed += _rows_of_runs(name_of(system), runs, tasks, with_language_average(training_curves(
                row for row in of_system if (row["task"], row["language"]) in shared)))
    if not printed:
        return None
    notes = ["Each row is one run from the pretraining on: the mean over its finetuning seeds and over the "
             "languages that all runs of the system have. Range: the best run less the worst."]
    return Table("Table A5: variance across pretraining runs", ["System", *tasks], printed, notes=notes)


def _rows_of_runs(name, runs, tasks, curves):
    """A row for each pretraining run of one system, whose curves these are, and one with their range."""
    ends = {task: curve[-1].by_seed for (_, task, language), curve in curves.items() if language == AVERAGE}
    means = {run: [_mean_of_run(ends.get(task, {}), run) for task in tasks] for run in runs}
    rows = [[Cell(f"{name}, seed {run}"), *map(_mean_cell, means[run])] for run in runs]
    columns = [[mean for mean in column if mean is not None] for column in zip(*means.values(), strict=True)]
    ranges = [Cell(f"{max(column) - min(column):.1f}") if len(column) > 1 else EMPTY for column in columns]
    return [*rows, [Cell(f"{name}, range"), *ranges]]


def _mean_of_run(by_seed, run):
    scores = [score for (of_run, _), score in by_seed.items() if of_run == run]
    return statistics.fmean(scores) if scores else None


def _mean_cell(mean):
    return EMPTY if mean is None else Cell(f"{mean:.1f}")


def _system(depths):
    return name_of(system_of(next(iter(depths.values()))))


def _languages_in_order(curves):
    return list(dict.fromkeys(language for task in tasks_of(curves)
                              for language in languages_of(curves, task)))


def _languages(curves):
    """The languages of each task, named once where they are the same."""
    by_task = {task: ", ".join(languages_of(curves, task)) for task in tasks_of(curves)}
    if len(set(by_task.values())) == 1:
        return next(iter(by_task.values()))
    return "; ".join(f"{task}: {languages}" for task, languages in by_task.items())
