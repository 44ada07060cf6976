"""What a run has come to, in a sentence for each system: every score before, by the untouched model, and after."""

from collections.abc import Iterator
from statistics import fmean

from ds_minimodel.report.curves import OF_SOURCE, ON_SOURCE, Row, RunResults, in_order, name_of, shown_score
from ds_minimodel.report.tables import PERCENT, SCALES

_WORSE = "worse than the untouched model: train longer or on more text, or leave the model as it is"


def verdicts(run: RunResults) -> list[str]:
    """Sentences of a recipe with a base, and a line for each score that is worse than the untouched model's."""
    if run.recipe.base is None:
        return []
    lines, worse = [], []
    for system in in_order(row["system"] for row in run.target_scores):
        parts = []
        for text, is_worse in _changes(run, system):
            parts.append(text)
            worse += [f"{name_of(system)}, {text}: {_WORSE}."] if is_worse else []
        hours = sum(loss["hours"] for loss in run.losses if loss["system"] == system)
        lines.append(f"{name_of(system)}: {'; '.join(parts)}; {_time(hours)} of training.")
    return lines + worse


def _changes(run: RunResults, system: str) -> Iterator[tuple[str, bool]]:
    """(what became of a task in a language, whether it is worse than before)."""
    rows = [row for row in run.target_scores if row["system"] == system and row["step"] == run.recipe.adapt.steps]
    source = run.recipe.languages.source
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        column, unit = shown_score(of_task[0], run.metrics[task])
        for language in dict.fromkeys(row["language"] for row in of_task):
            own = [row for row in of_task if row["language"] == language]
            before, after = _mean(own, OF_SOURCE + column), _mean(own, column)
            yield _change(f"{language}, {task}", before, after, column, unit)
        taken = [row for row in of_task if ON_SOURCE + column in row]
        if taken:
            of_source = [row for row in run.source_scores if (row["system"], row["task"]) == (system, task)]
            for language in dict.fromkeys(row["language"] for row in taken):
                after = _mean([row for row in taken if row["language"] == language], ON_SOURCE + column)
                name = f"{source}, {task}, with the pack of {language}"
                text, _ = _change(name, _mean(of_source, column), after, column, unit)
                yield text, False


def _change(name: str, before: float, after: float, column: str, unit: str) -> tuple[str, bool]:
    scale = SCALES.get(column, PERCENT)
    shown = [scale.form.format(value) for value in (before, after)]
    return f"{name}: {shown[0]} {unit} before, {shown[1]} after", after != scale.best((before, after))


def _mean(rows: list[Row], column: str) -> float:
    return fmean(row[column] for row in rows)


def _time(hours: float) -> str:
    return (
        f"{hours:.1f} h" if hours >= 0.95 else f"{hours * 60:.0f} min" if hours >= 1 / 30 else f"{hours * 3600:.0f} s"
    )
