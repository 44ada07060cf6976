"""Tables of the paper for one's own runs, as data (render.py prints them), and what they read off the curves."""

import itertools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ds_minimodel.results.curves import (
    AVERAGE,
    Curves,
    Estimate,
    Estimates,
    Key,
    Point,
    Row,
    mean_compute,
    training_curves,
    with_language_average,
)
from ds_minimodel.results.losses import LAST_SHARE
from ds_minimodel.results.render import EMPTY, Cell, Table
from ds_minimodel.results.units import ComputeUnit, flops_unit, in_order, name_of, paper_label, system_of, v100_unit
from ds_minimodel.systems import BASELINE

_Run = tuple[str, str, str]  # system, stage and language of a loss row


class Scale(NamedTuple):
    """How scores are printed, and which of them is the best."""

    form: str = "{:.1f}"
    best: Callable[[Iterable[float]], float] = max


PERCENT = Scale()
SCALES = {"bits_per_byte": Scale("{:.3f}", min)}  # of further scores


def tasks_of(curves: Curves) -> list[str]:
    """Tasks in the order of the curves."""
    return list(dict.fromkeys(task for _, task, _ in curves))


def systems_of(curves: Curves, task: str | None = None) -> list[str]:
    """Variants of systems that have a curve (of `task`), in the paper's order."""
    return in_order(system for system, of_task, _ in curves if task in (None, of_task))


def languages_of(curves: Curves, task: str) -> list[str]:
    """Languages that `task` was scored in, without the average."""
    return list(dict.fromkeys(language for _, of_task, language in curves if of_task == task and language != AVERAGE))


def adapt_costs(costs: Iterable[Row]) -> dict[str, float]:
    """Return {system: EFLOPs of step 2 for one language, by the paper's formula} from the rows of recipe_costs."""
    return {row["system"]: row["formula_eflops"] for row in costs if row["step"] == "adapt"}


def _points(curves: Curves, keys: Iterable[Key], number: int = -1) -> list[Point | None]:
    """Points of curves, at training completion if no number says another; None where there is no curve."""
    return [curves[key][number] if key in curves else None for key in keys]


def _best_of_columns(rows: Iterable[Sequence[Point | None]], scale: Scale = PERCENT) -> list[float | None]:
    """The best mean of each column, None where it has none."""
    means = [[point.mean for point in column if point] for column in zip(*rows, strict=True)]
    return [scale.best(of_column) if of_column else None for of_column in means]


def _largest(estimates: Iterable[Estimate | None]) -> float:
    """The largest EFLOPs of estimates' bounds that are reached."""
    return max((estimate.upper for estimate in estimates if estimate and estimate.upper < math.inf), default=0)


def score_cell(point: Point | None, best: float | None = None, scale: Scale = PERCENT) -> Cell:
    """Cell with the mean and deviation of a curve's point; the best one's mean is printed bold."""
    if point is None:
        return EMPTY
    deviation = "" if point.std is None else f"±{scale.form.format(point.std)}"
    return Cell(scale.form.format(point.mean), deviation, point.mean == best)


def estimate_cell(estimate: Estimate | None, unit: ComputeUnit, best: float | None = None) -> Cell:
    """Cell with the compute to a target with its bounds; ∞ where it is never reached."""
    if estimate is None:
        return EMPTY
    if estimate.eflops == float("inf"):
        return Cell("∞")
    return Cell(
        unit.text(estimate.eflops),
        f"({unit.text(estimate.lower)}–{unit.text(estimate.upper)})",
        estimate.eflops == best,
    )


# --- tables 2, 3 and 5 (A2 and A1 are 2 and 3 for XQuAD)


def summary_table(curves: Curves, costs: Iterable[Row]) -> Table:
    """Summary as in the paper's section 4.1: cost, and score retained."""
    tasks, spent = tasks_of(curves), adapt_costs(costs)
    unit = v100_unit(max(spent.values(), default=0))
    rows = []
    for system in systems_of(curves):
        ends, of_baseline = (_points(curves, ((one, task, AVERAGE) for task in tasks)) for one in (system, BASELINE))
        pairs = zip(ends, of_baseline, strict=True)
        retained = [end.mean / baseline.mean for end, baseline in pairs if end and baseline and baseline.mean]
        cost = spent.get(system)
        rows.append(
            [
                Cell(name_of(system)),
                EMPTY if cost is None else Cell(unit.text(cost)),
                _percent(cost, spent.get(BASELINE)),
                _percent(statistics.fmean(retained), 1) if retained else EMPTY,
            ]
        )
    notes = ["Score retained: the system's average final score over BL_BASE's, mean over tasks."]
    return Table(
        "Summary",
        ["System", f"step 2, {unit.name} a language", "of BL_BASE's cost", "score retained"],
        rows,
        notes=notes,
    )


def _percent(part: float | None, whole: float | None) -> Cell:
    return Cell(f"{100 * part / whole:.1f} %") if part is not None and whole else EMPTY


def final_scores_table(
    task: str,
    metric: str,
    curves: Curves,
    costs: Iterable[Row],
    baselines: Sequence[Row] = (),
    is_finetuned: bool = True,
    scale: Scale = PERCENT,
    of_source: Curves | None = None,
) -> Table:
    """Table 2 for one task: training cost, and the score at training completion in each language.

    metric: what the scores are, such as "accuracy". baselines: rows {"baseline", "task", "language",
    "score"}, such as the majority class. They, the scores before any training (step 0: unadapted
    embeddings) and those of the source language's own pack, where there are any, are the references.
    """
    systems, columns = systems_of(curves, task), [*languages_of(curves, task), AVERAGE]
    spent = adapt_costs(costs)
    flops, days = flops_unit(max(spent.values(), default=0)), v100_unit(max(spent.values(), default=0))
    keys = {system: [(system, task, language) for language in columns] for system in systems}
    best = _best_of_columns((_points(curves, keys[system]) for system in systems), scale)
    rows, before = [], []

    def cells(points: Sequence[Point | None], best: Iterable[float | None] = itertools.repeat(None)) -> Iterator[Cell]:
        return map(score_cell, points, best, itertools.repeat(scale))

    for system in systems:
        cost = [Cell(unit.text(spent[system])) if system in spent else EMPTY for unit in (flops, days)]
        rows.append([Cell(name_of(system)), *cost, *cells(_points(curves, keys[system]), best)])
        first, with_source = _points(curves, keys[system], 0), _points(of_source or {}, keys[system])
        if system == system_of(system) and any(first) and all(point.step == 0 for point in first if point):
            before.append([Cell(f"{name_of(system)}, unadapted"), EMPTY, EMPTY, *cells(first)])
        if system == system_of(system) and any(with_source):
            before.append([Cell(f"{name_of(system)}, source's pack"), EMPTY, EMPTY, *cells(with_source)])
    references = [[Cell(name), EMPTY, EMPTY, *row] for name, row in _baseline_rows(task, columns, baselines)]
    return Table(
        f"{paper_label('Table 2', task)}: performance at training completion, {metric}",
        ["System", flops.name, days.name, *columns],
        rows,
        references + before,
        [_completion_note(task, curves, is_finetuned), *_reasons(task, baselines)],
    )


def _reasons(task: str, baselines: Iterable[Row]) -> list[str]:
    """Notes that say why references have no score."""
    found: dict[str, list[str]] = {}
    for row in baselines:
        if row["task"] == task and row["score"] is None:
            found.setdefault(f"{row['baseline']}: {row['reason']}", []).append(row["language"])
    return [f"No score of {reason} ({', '.join(languages)})." for reason, languages in found.items()]


def _completion_note(task: str, curves: Curves, is_finetuned: bool) -> str:
    """Note that says after how many updates and with how many seeds the final scores of `task` were taken."""
    ends = [curve[-1] for (_, of_task, language), curve in curves.items() if of_task == task and language != AVERAGE]
    num_seeds = _range(len(point.by_seed) for point in ends)
    runs, one = ("finetuning runs", "One finetuning seed.") if is_finetuned else ("runs", "Not finetuned.")
    over_seeds = one if num_seeds == "1" else f"Mean ± standard deviation over {num_seeds} {runs}."
    return (
        f"Bold: the best. After {_range(point.step for point in ends)} updates of step 2; cost of step 2 "
        f"for one language. {over_seeds}"
    )


def _range(numbers: Iterable[int]) -> str:
    smallest, largest = min(numbers := list(numbers)), max(numbers)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def _baseline_rows(task: str, columns: Sequence[str], baselines: Iterable[Row]) -> Iterator[tuple[str, list[Cell]]]:
    """Yield (name, cells) of each baseline that was scored on the task; its average only over all the languages."""
    by_name: dict[str, dict[str, float]] = {}
    for row in baselines:
        if row["task"] == task:
            of_name = by_name.setdefault(row["baseline"], {})
            of_name |= {} if row["score"] is None else {row["language"]: row["score"]}
    for name, scores in by_name.items():
        languages = [language for language in columns if language != AVERAGE]
        if all(language in scores for language in languages):
            scores[AVERAGE] = statistics.fmean(scores[language] for language in languages)
        yield name, [_mean_cell(scores.get(language)) for language in columns]


def near_maximal_table(task: str, curves: Curves, estimates: Estimates) -> Table:
    """Table 3 for one task: V100 time to 95 % of BL_BASE's final score, with the bounds of the estimate."""
    languages = languages_of(curves, task)
    found = {
        system: [estimates.get((system, task, language)) for language in languages]
        for system in in_order(system for system, of_task, _ in estimates if of_task == task)
    }
    largest = max(map(_largest, found.values()), default=0)
    days, flops = v100_unit(largest), flops_unit(largest)
    best = [min((one.eflops for one in column if one), default=None) for column in zip(*found.values(), strict=True)]
    rows, starred = [], False
    for system, of_system in found.items():
        mean, never = mean_compute(estimates, system, task)
        averages = [Cell("∞")] * 2
        if mean is not None:
            starred = starred or bool(never)
            averages = [Cell(unit.text(mean) + ("*" if never else "")) for unit in (days, flops)]
        cells = map(estimate_cell, of_system, itertools.repeat(days), best)
        rows.append([Cell(name_of(system)), *cells, *averages])
    notes = [
        "Near-maximal performance is 95 % of BL_BASE's score at training completion, for every system. "
        "Interpolated linearly between the checkpoints before and after, whose compute is in brackets. "
        "∞: never reached."
    ]
    if starred:
        notes.append("*: without the languages that never reach it.")
    return Table(
        f"{paper_label('Table 3', task)}: {days.name} to near-maximal performance",
        ["System", *languages, f"{AVERAGE}, {days.name}", f"{AVERAGE}, {flops.name}"],
        rows,
        notes=notes,
    )


def source_table(source: str, curves: Curves, is_finetuned: bool = True) -> Table:
    """Table 5: final scores in the source language, by system and task; `curves` hold that language's."""
    tasks = tasks_of(curves)
    ends = {system: _points(curves, ((system, task, source) for task in tasks)) for system in systems_of(curves)}
    best = _best_of_columns(ends.values())
    rows = [[Cell(name_of(system)), *map(score_cell, of_system, best)] for system, of_system in ends.items()]
    finetuned = ", after finetuning on the source language" if is_finetuned else ""
    notes = [f"With the source language's own embeddings{finetuned}. MiniPost's primary model is BL_BASE's."]
    title = f"Table 5: performance in the source language, {source}"
    return Table(title, ["System", *tasks], rows, notes=notes)


# --- the depth of the mini-model (tables A3, A4, Figure 4), and the pretraining seed (A5)
#
# `depths` is {depth: variant}: the variants of one system that differ in the mini-model's depth alone.


def depth_curves(rows: Sequence[Row], depths: Mapping[int, str]) -> dict[Key, list[Point]]:
    """Curves of the variants in `depths`, and of BL_BASE, in the languages that all the variants have.

    So the averages over languages compare: a depth is often tried in few languages.
    """
    shared = _in_all(rows, depths.values(), lambda row: row["system"])
    return with_language_average(
        training_curves(
            row
            for row in rows
            if (row["task"], row["language"]) in shared and row["system"] in (BASELINE, *depths.values())
        )
    )


GroupKey = TypeVar("GroupKey")


def _in_all(
    rows: Iterable[Row], groups: Iterable[GroupKey], group_of: Callable[[Row], GroupKey]
) -> set[tuple[str, str]]:
    """The (task, language) that each of `groups` has rows of."""
    found: dict[GroupKey, set[tuple[str, str]]] = {group: set() for group in groups}
    for row in rows:
        if group_of(row) in found:
            found[group_of(row)].add((row["task"], row["language"]))
    return set.intersection(*found.values())


def depth_scores_table(depths: Mapping[int, str], curves: Curves, costs: Iterable[Row]) -> Table:
    """Table A3: cost, and score at training completion averaged over languages, by depth."""
    tasks, spent = tasks_of(curves), adapt_costs(costs)
    unit = v100_unit(max(spent.values(), default=0))
    variants = (*depths.values(), BASELINE)
    finals = {variant: _points(curves, ((variant, task, AVERAGE) for task in tasks)) for variant in variants}
    best = _best_of_columns(finals[variant] for variant in depths.values())

    def row(label: str, variant: str) -> list[Cell]:
        cost = Cell(unit.text(spent[variant])) if variant in spent else EMPTY
        marks = best if variant != BASELINE else [None] * len(tasks)
        return [Cell(label), cost, *map(score_cell, finals[variant], marks)]

    notes = [
        "N: layers of the primary model in the mini-model. Averaged over languages "
        f"({_languages(curves)}); cost of step 2 for one language."
    ]
    references = [row("BL_BASE", BASELINE)] if any(finals[BASELINE]) else []
    return Table(
        f"Table A3: {_system(depths)} at training completion by depth of the mini-model",
        ["N", f"step 2, {unit.name}", *tasks],
        [row(str(depth), variant) for depth, variant in depths.items()],
        references,
        notes,
    )


def depth_estimates_table(depths: Mapping[int, str], estimates: Estimates, curves: Curves) -> Table:
    """Table A4 (and 4): V100 time to near-maximal performance by language, task and depth, with bounds."""
    keys = [
        (task, language)
        for language in _languages_in_order(curves)
        for task in tasks_of(curves)
        if (BASELINE, task, language) in estimates
    ]
    unit = v100_unit(_largest(estimates[one, *key] for one in (*depths.values(), BASELINE) for key in keys))
    rows = []
    for task, language in keys:
        found = [estimates[variant, task, language] for variant in depths.values()]
        best = min(estimate.eflops for estimate in found)
        cells = [estimate_cell(estimate, unit, best) for estimate in found]
        rows.append([Cell(f"{language} {task}"), *cells, estimate_cell(estimates[BASELINE, task, language], unit)])
    notes = [
        "Near-maximal performance is 95 % of BL_BASE's score at training completion. In brackets the "
        "compute of the checkpoints before and after. ∞: never reached."
    ]
    return Table(
        f"Table A4: {unit.name} to near-maximal performance of {_system(depths)} by depth of the mini-model",
        ["", *(f"N = {depth}" for depth in depths), "BL_BASE"],
        rows,
        notes=notes,
    )


def seeds_table(rows: Sequence[Row]) -> Table | None:
    """Table A5: final scores by pretraining run, each the mean over its finetuning seeds and over languages.

    The seeds of `rows` are pairs (seed of the run, finetuning seed). None where no system has two runs.
    """
    tasks, printed = list(dict.fromkeys(row["task"] for row in rows)), []
    for system in in_order(row["system"] for row in rows):
        of_system = [row for row in rows if row["system"] == system]
        runs = sorted({row["seed"][0] for row in of_system})
        if len(runs) > 1:
            shared = _in_all(of_system, runs, lambda row: row["seed"][0])
            printed += _rows_of_runs(
                name_of(system),
                runs,
                tasks,
                with_language_average(
                    training_curves(row for row in of_system if (row["task"], row["language"]) in shared)
                ),
            )
    if not printed:
        return None
    notes = [
        "Each row is one run from the pretraining on: the mean over its finetuning seeds and over the "
        "languages that all runs of the system have. Range: the best run less the worst."
    ]
    return Table("Table A5: variance across pretraining runs", ["System", *tasks], printed, notes=notes)


def _rows_of_runs(name: str, runs: list[int], tasks: list[str], curves: Curves) -> list[list[Cell]]:
    """Row for each pretraining run of one system, whose curves these are, and one with their range."""
    ends = {task: curve[-1].by_seed for (_, task, language), curve in curves.items() if language == AVERAGE}
    means = {run: [_mean_of_run(ends.get(task, {}), run) for task in tasks] for run in runs}
    rows = [[Cell(f"{name}, seed {run}"), *map(_mean_cell, means[run])] for run in runs]
    columns = [[mean for mean in column if mean is not None] for column in zip(*means.values(), strict=True)]
    ranges = [Cell(f"{max(column) - min(column):.1f}") if len(column) > 1 else EMPTY for column in columns]
    return [*rows, [Cell(f"{name}, range"), *ranges]]


def _mean_of_run(by_seed: Mapping[Any, float], run: int) -> float | None:
    scores = [score for (of_run, _), score in by_seed.items() if of_run == run]
    return statistics.fmean(scores) if scores else None


def _mean_cell(mean: float | None) -> Cell:
    return EMPTY if mean is None else Cell(f"{mean:.1f}")


def _system(depths: Mapping[int, str]) -> str:
    return name_of(system_of(next(iter(depths.values()))))


def _languages_in_order(curves: Curves) -> list[str]:
    return list(dict.fromkeys(language for task in tasks_of(curves) for language in languages_of(curves, task)))


def _languages(curves: Curves) -> str:
    """Languages of each task, named once where they are the same."""
    by_task = {task: ", ".join(languages_of(curves, task)) for task in tasks_of(curves)}
    if len(set(by_task.values())) == 1:
        return next(iter(by_task.values()))
    return "; ".join(f"{task}: {languages}" for task, languages in by_task.items())


# --- costs and losses


def cost_table(costs: Sequence[Row]) -> Table:
    """Cost of every step: the paper's formula, V100 time by it, and what this implementation executes."""
    largest = max((row["formula_eflops"] for row in costs), default=0)
    flops, days = flops_unit(largest), v100_unit(largest)
    systems = in_order(row["system"] for row in costs)
    rows = [
        [
            Cell(name_of(row["system"])),
            Cell(row["step"]),
            Cell(flops.text(row["formula_eflops"])),
            Cell(days.text(row["formula_eflops"])),
            Cell(flops.text(row["executed_eflops"])),
            Cell(f"{row['executed_eflops'] / row['formula_eflops']:.2f}"),
        ]
        for row in sorted(costs, key=lambda row: systems.index(row["system"]))
    ]
    notes = [
        "Formula: the paper's appendix A.1, and V100 time by it at 30 TFLOP/s. Executed: the matrix "
        "products that run here. Both are computed from the sizes, not measured. adapt is the cost of "
        "one language; MiniPost's pretraining is BL_BASE's and is paid once."
    ]
    if costs and not any(row["step"] == "pretrain" for row in costs):
        notes.append("The body was pretrained elsewhere: what that took is not known and not counted.")
    return Table(
        "Cost of each step",
        ["System", "Step", f"formula, {flops.name}", days.name, f"executed, {flops.name}", "executed ÷ formula"],
        rows,
        notes=notes,
    )


def loss_table(losses: Iterable[Row]) -> Table:
    """Final training loss of every step; loss rows as in losses.py."""
    finals: dict[_Run, list[float]] = {}
    for row in losses:
        finals.setdefault((row["system"], row["stage"], row["language"]), []).append(row["final"])
    note = (
        "Mean training loss (nats a predicted token, mean over heads) over the last "
        f"{LAST_SHARE:.0%} of the steps, mean over runs. Each language has a vocabulary of its own: "
        "losses compare within a language only."
    )
    cells = {run: Cell(f"{statistics.fmean(values):.3f}") for run, values in finals.items()}
    return _table_of_runs("Training loss", cells, note)


def held_out_table(losses: Iterable[Row]) -> Table:
    """Held-out loss after the last step of every run, and at the best one."""
    curves: dict[_Run, list[dict[int, float]]] = {}
    for row in losses:
        if row["held_out"]:
            curve = {int(step): bits for step, _, bits in row["held_out"]}
            curves.setdefault((row["system"], row["stage"], row["language"]), []).append(curve)
    note = (
        "Bits a byte of text that was not trained on, after the last step, mean over runs; of step 2 (adapt) those of "
        "the whole body with the pack plugged in. Beside it the best of the run, where it is another one: in step 2 "
        "the best snapshot."
    )
    return _table_of_runs("Held-out loss", {run: _held_out_cell(of_run) for run, of_run in curves.items()}, note)


def _held_out_cell(curves: list[dict[int, float]]) -> Cell:
    """Of the mean of curves, {step: bits}, at the steps that all of them have."""
    steps = [step for step in sorted(curves[0]) if all(step in curve for curve in curves)]
    if not steps:
        return EMPTY
    means = {step: statistics.fmean(curve[step] for curve in curves) for step in steps}
    best, last = min(steps, key=means.__getitem__), steps[-1]
    return Cell(f"{means[last]:.3f}", "" if best == last else f"best {means[best]:.3f} at step {best:,}")


def development_table(rows: Iterable[Row]) -> Table:
    """Scores on development files after the last epoch and the best one of each finetuning; rows as in losses.py."""
    curves: dict[tuple[str, str], list[list[float]]] = {}
    for row in rows:
        curves.setdefault((row["system"], row["task"]), []).append([score for _, score in row["curve"]])
    tasks = list(dict.fromkeys(task for _, task in curves))

    def cell(system: str, task: str) -> Cell:
        scores = [of_run for of_run in curves.get((system, task), []) if of_run]
        if not scores:
            return EMPTY
        last, best = (statistics.fmean(map(choose, scores)) for choose in (operator.itemgetter(-1), max))
        return Cell(f"{last:.1f}", f"best {best:.1f}" if best > last else "")

    systems = in_order(system for system, _ in curves)
    note = (
        "In the source language, after the last epoch, and of the best epoch of each finetuning; means over seeds and "
        "runs. Task models are those of the last epoch, or by finetune.keep of the best one."
    )
    cells = [[Cell(name_of(system)), *(cell(system, task) for task in tasks)] for system in systems]
    return Table("Scores on development files", ["System", *tasks], cells, notes=[note])


def _table_of_runs(title: str, cells: Mapping[_Run, Cell], note: str) -> Table:
    """A row for each system, a column for each stage and language."""
    stages = in_order((stage for _, stage, _ in cells), ["pretrain", "build-mini", "adapt"])
    columns = list(dict.fromkeys(run[1:] for stage in stages for run in cells if run[1] == stage))
    rows = [
        [Cell(name_of(system)), *(cells.get((system, stage, language), EMPTY) for stage, language in columns)]
        for system in in_order(system for system, _, _ in cells)
    ]
    return Table(title, ["System", *(f"{stage} {language}" for stage, language in columns)], rows, notes=[note])


def example_tables(examples: Sequence[Row]) -> list[Table]:
    """Confusion matrices, and predictions beside gold labels: of one task's rows of RunResults.examples."""
    if not examples:
        return []
    labels, systems = examples[0]["labels"], list(dict.fromkeys(row["system"] for row in examples))
    confusion = []
    for name in systems:
        matrices = [row["confusion"] for row in examples if row["system"] == name]
        for number, gold in enumerate(labels):
            counts = [sum(column) for column in zip(*(matrix[number] for matrix in matrices), strict=True)]
            cells = (Cell(f"{count:,}", best=at == number) for at, count in enumerate(counts))
            confusion.append([Cell(name_of(name)), Cell(gold), *cells])
    found: dict[tuple[str, int, str, str], dict[str, str]] = {}  # of an example, what each system says
    for row in examples:
        for number, (text, gold, predicted) in enumerate(row["predictions"]):
            found.setdefault((row["language"], number, " ".join(text.split()), gold), {})[row["system"]] = predicted
    predictions = [
        [
            Cell(text),
            Cell(language),
            Cell(gold),
            *(Cell(said.get(name, "–"), best=said.get(name) == gold) for name in systems),
        ]
        for (language, _, text, gold), said in found.items()
    ]
    of_what = "after the last step, with the first finetuning seed; right ones in bold."
    return [
        Table(
            "Confusion matrices",
            ["System", "gold", *(f"predicted {name}" for name in labels)],
            confusion,
            notes=[f"Examples of all target languages {of_what}"],
        ),
        Table(
            "Predictions",
            ["Text", "language", "gold", *map(name_of, systems)],
            predictions,
            notes=[f"The first examples of each test file, {of_what}"],
        ),
    ]
