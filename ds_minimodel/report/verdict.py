"""What a run has come to, in a sentence for each system and language: scores before and after, and what it cost.

The page, the last lines of `run` and the cards of exports say it.
"""

from collections.abc import Collection
from statistics import fmean

from ds_minimodel.common.files import Count, Stored
from ds_minimodel.recipe.flops import recipe_costs
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.curves import BITS, OF_SOURCE, ON_SOURCE, Row, RunResults, in_order, name_of, shown_score
from ds_minimodel.report.tables import PERCENT, SCALES

VERDICTS_FILE = "verdicts.json"
_WORSE = "worse than the untouched model: train longer or on more text, or leave the model as it is"
FORGETS = {  # by whether the body trains
    False: "has become worse: raise adapt.new_token_penalty in the recipe, or lower adapt.lr",
    True: "has become worse: export-hf with a smaller --strength keeps more of it, or take --train embeddings",
}
_MOST_LOST = 0.002  # of the source's score, without a line that says so


class Verdict(Stored):
    """Of a system in a language.

    steps: updates of the pack. clauses: {task: what became of it}. kept: sentences of a Kept. worse: in which the
    untouched model is better, and what to do, a line each. cost: of step 2.
    """

    system: str
    language: str
    steps: Count
    clauses: dict[str, str]
    kept: list[str] = []
    worse: list[str]
    cost: str

    def sentence(self, tasks: Collection[str]) -> str:
        """Of these tasks."""
        return "; ".join([*(text for task, text in self.clauses.items() if task in tasks), self.cost]) + "."

    @property
    def lines(self) -> list[str]:
        """The sentence of all tasks, those of what is kept, and a line for each that is worse."""
        own = [self.sentence(self.clauses), *self.kept, *self.worse]
        return [f"{name_of(self.system)}, {line}" for line in own]


def verdicts(run: RunResults) -> list[Verdict]:
    """Those of a recipe with a base; without one nothing was there before."""
    systems = in_order(row["system"] for row in run.target_scores) if run.recipe.base else []
    return [_verdict(run, system, language) for system in systems for language in run.recipe.languages.targets]


def _verdict(run: RunResults, system: str, language: str) -> Verdict:
    steps, clauses, worse = run.recipe.adapt.steps, dict[str, str](), []
    for task, metric in run.metrics.items():
        of_task = [row for row in run.scores if (row["system"], row["task"]) == (system, task)]
        rows = [row for row in of_task if (row["language"], row["step"]) == (language, steps)]
        if not rows:
            continue
        column, unit = shown_score(rows[0], metric)
        scale, named = SCALES.get(column, PERCENT), f", {task}" if len(run.metrics) > 1 else ""
        scores = _mean(rows, OF_SOURCE + column), _mean(rows, column)
        before, after = map(scale.form.format, scores)
        clauses[task] = f"{language}{named}: {before} {unit} before, {after} after"
        if column in BITS:
            clauses[task] += _compressed(run, task, language, scores[1])
        if ON_SOURCE + column in rows[0]:
            source = run.recipe.languages.source
            own = [row for row in of_task if row["language"] == source]
            of_source = _mean(own, column), _mean(rows, ON_SOURCE + column)
            before, after = map(scale.form.format, of_source)
            clauses[task] += f"; {source}{named}: {before} before, {after} after"
            if ON_SOURCE + "cut" in rows[0]:
                clauses[task] += f", {_mean(rows, ON_SOURCE + 'cut'):.1f} % of it cut otherwise"
            if abs(of_source[1] / of_source[0] - 1) > _MOST_LOST and of_source[1] != scale.best(of_source):
                worse.append(f"{clauses[task]}: {source} {FORGETS[bool(SYSTEMS[system].trains)]}.")
        if scores[1] != scale.best(scores):
            worse.append(f"{clauses[task]}: {_WORSE}.")
    kept, cost = run.kept.get((system, language)), _cost(run, system, language)
    sentences, worse = (kept.sentences, [*worse, *kept.worse]) if kept else ([], worse)
    return Verdict(
        system=system, language=language, steps=steps, clauses=clauses, kept=sentences, worse=worse, cost=cost
    )


def _compressed(run: RunResults, task: str, language: str, bits: float) -> str:
    """What xz, which knows no language, takes, in brackets."""
    found = run.compressed.get((task, language))
    return "" if found is None else f" (xz {found:.3f}{', which is better' if found < bits else ''})"


def _cost(run: RunResults, system: str, language: str) -> str:
    """Hours of training, those of a mini-model too, and FLOPs of step 2."""
    of_system = [loss for loss in run.losses if loss["system"] == system]
    hours = sum(loss["hours"] for loss in of_system if loss["language"] in (language, run.recipe.languages.source))
    costs = recipe_costs(run.recipe.model_copy(update={"systems": [system, "full"]}))
    own, whole = (row["executed_eflops"] for row in costs if row["step"] == "adapt")
    return f"{_time(hours)} on this machine; {100 * own / whole:.0f} % of the FLOPs of training all weights"


def _mean(rows: list[Row], column: str) -> float:
    return fmean(row[column] for row in rows)


def _time(hours: float) -> str:
    return (
        f"{hours:.1f} h" if hours >= 0.95 else f"{hours * 60:.0f} min" if hours >= 1 / 30 else f"{hours * 3600:.0f} s"
    )
