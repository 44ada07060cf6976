#!/usr/bin/env python3
"""Write the results of docs/study.md from the workdirs of its runs, and judge its hypotheses.

    python scripts/study_page.py runs/study seed-1 seed-11 depth-1 depth-3 depth-6 depth-9 little

That is what `bash scripts/study.sh page` does, which makes the reports of the runs before. The first run's settings are
those that the others differ from. Writes all tables (results.md), three figures and the scores of all runs
(scores.json) to benchmarks/study, and puts the results in short at the end of docs/study.md, in the place of those that
are there between two marks. What stands outside of the marks is left as it is. The hypotheses are those of
scripts/study_hypotheses.yaml.
"""

import argparse
import itertools
import json
import operator
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import atomic_write
from ds_minimodel.recipe.schema import Recipe, Task
from ds_minimodel.results.comparison import Comparison, compare_runs
from ds_minimodel.results.page import paired_blocks, report_blocks
from ds_minimodel.results.paired import Number, difference, pairs_of, share, speedup, unit_curves
from ds_minimodel.results.paired_tables import difference_label, majority_scores, number_cell
from ds_minimodel.results.render import EMPTY, Block, Cell, Facts, Figure, Heading, Notes, Table, to_markdown
from ds_minimodel.results.run_results import RunResults, read_run_results
from ds_minimodel.results.tables import adapt_costs
from ds_minimodel.results.units import flops_unit, name_of, system_of
from ds_minimodel.tasks import KINDS

HYPOTHESES = ROOT / "scripts/study_hypotheses.yaml"
BEGIN, END = "<!-- results: made by scripts/study_page.py -->", "<!-- end of the results -->"
FIGURES = ("figure-3.png", "figure-4-multijoint.png", "differences.png")
CONFIRMED, REFUTED, OPEN, NO_SCORES = "confirmed", "refuted", "open", "no such scores"
FORMS = {"share": "{:.3f}", "speedup": "{:.2f}"}  # of numbers; differences have a sign
Claim = dict[str, Any]  # an entry of the file of hypotheses


# --- the hypotheses


BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("≥", operator.ge),
    "above": (">", operator.gt),
    "at_most": ("≤", operator.le),
}


def bound_of(claim: Claim) -> str:
    """The key of a claim's bound."""
    return next(key for key in BOUNDS if key in claim)


def verdict(number: Number, bound: str, threshold: float) -> str:
    """Of a claim, by the whole interval."""
    holds = BOUNDS[bound][1]
    sides = {holds(number.low, threshold), holds(number.high, threshold)}
    return OPEN if len(sides) == 2 else CONFIRMED if sides == {True} else REFUTED


class Judge:
    """Makes the rows of the table of verdicts, a function for each kind of number."""

    def __init__(self, comparison: Comparison) -> None:
        self.curves, self.in_source = unit_curves(comparison.scores), unit_curves(comparison.source_scores)
        self.costs, self.depths = adapt_costs(comparison.costs), comparison.depths

    def rows(self, claim: Claim) -> list[list[Cell]]:
        """Rows of a claim: what is measured, its value, what confirms it, cells and units, verdict."""
        by_depth = self.depths.get(claim["of"], {})
        if claim["number"] == "cost":
            rows = [self._cost(claim)]
        elif claim["number"] == "depth-costs":
            rows = [self._depth_costs(by_depth)]
        elif claim["number"] == "depth-differences":
            rows = [self._number(claim, one, other) for other, one in itertools.pairwise(by_depth.values())]
            rows = rows or [["each depth − the next smaller one", "–", "–", "–", NO_SCORES]]
        else:
            rows = [self._number(claim, claim["of"], claim["against"])]
        return [[Cell(claim["hypothesis"]), *map(Cell, row)] for row in rows]

    def _number(self, claim: Claim, one: str, other: str) -> list[str]:
        kind, bound = claim["number"], bound_of(claim)
        condition = f"{BOUNDS[bound][0]} {claim[bound]}"
        of_source = kind == "source-difference"
        pairs = pairs_of(self.in_source if of_source else self.curves, one, other)
        if kind in ("share", "speedup"):
            number = share(pairs) if kind == "share" else speedup(pairs)
            label = f"{kind} of {name_of(one)} against {name_of(other)}"
        else:
            number = difference(pairs)
            label = difference_label(one, other) + (", source language" if of_source else "")
        if number is None:
            return [label, "–", condition, "–", NO_SCORES]
        cell = number_cell(number, FORMS.get(kind, "{:+.2f}"))
        cells = f"{number.num_cells} / {number.num_units}"
        return [label, f"{cell.text} {cell.detail}", condition, cells, verdict(number, bound, claim[bound])]

    def _cost(self, claim: Claim) -> list[str]:
        systems = [claim["between"][0], claim["of"], claim["between"][1]]
        label, condition = f"cost of step 2: {' < '.join(map(name_of, systems))}", "strictly between"
        if not set(systems) <= self.costs.keys():
            return [label, "–", condition, "–", NO_SCORES]
        return self._rising(label, [self.costs[system] for system in systems], condition)

    def _depth_costs(self, depths: Mapping[int, str]) -> list[str]:
        if not depths:
            return ["cost of step 2 by depth", "–", "rises", "–", NO_SCORES]
        label = f"cost of step 2 at N = {', '.join(map(str, depths))}"
        return self._rising(label, [self.costs[variant] for variant in depths.values()], "rises")

    def _rising(self, label: str, eflops: Sequence[float], condition: str) -> list[str]:
        rises = all(less < more for less, more in itertools.pairwise(eflops))
        unit = flops_unit(max(eflops))
        value = f"{', '.join(map(unit.text, eflops))} {unit.name}"
        return [label, value, condition, "–", CONFIRMED if rises else REFUTED]


def verdicts(comparison: Comparison) -> Table:
    """Every claim of the hypotheses with its number and its verdict."""
    claims, judge = yaml.safe_load(HYPOTHESES.read_text(encoding="utf-8")), Judge(comparison)
    return Table(
        "Verdicts",
        ["", "what", "number", "confirmed if", "cells / units", "verdict"],
        [row for claim in claims for row in judge.rows(claim)],
        notes=[
            "In brackets the 95 % interval. Confirmed: the whole interval is on the claim's side. Refuted: the whole "
            "interval is on the other. Else open. Costs follow from the sizes and have no interval."
        ],
    )


# --- the pilot

MARGIN, LEAST = 5, 2  # points above a reference: of the mean, of each seed


def references_of(task: Task, path: str, source: str) -> dict[str, float]:
    """{reference: its score} on a test file in the source language."""
    references = KINDS[task.kind].references(task, {source: path}, source)
    found = {reference: by_language[source] for reference, by_language in references.items() if by_language}
    if len(found) < len(references):
        raise UserError(f"{path}: its references need scikit-learn; pip install 'ds_minimodel[report]'")
    return found


def pilot_result(run: RunResults) -> tuple[Table, set[str]]:
    """(scores of BL_BASE in the source language beside the references, tasks that enter by them)."""
    recipe, source, rows, entered = Recipe.model_validate(run.recipe), run.source, [], set()
    for name, task in recipe.finetune.tasks.items():
        scores = [row["score"] for row in run.source_scores if (row["system"], row["task"]) == ("bl_base", name)]
        if source not in task.test or not scores:
            continue
        found = references_of(task, task.test[source], source)
        hurdles = [found[reference] for reference in ("majority", "overlap") if reference in found]
        mean = sum(scores) / len(scores)
        enters = all(mean >= hurdle + MARGIN and min(scores) >= hurdle + LEAST for hurdle in hurdles)
        entered |= {name} if enters else set()
        rows.append(
            [
                Cell(name),
                Cell(f"{mean:.1f}"),
                Cell(", ".join(f"{score:.1f}" for score in scores)),
                *(
                    Cell(f"{found[reference]:.1f}") if reference in found else EMPTY
                    for reference in ("majority", "overlap", "TF-IDF")
                ),
                Cell("enters" if enters else "fails"),
            ]
        )
    table = Table(
        f"{run.name}: BL_BASE in {source}",
        ["task", "mean", "seeds", "majority class", "word overlap", "TF-IDF", ""],
        rows,
        notes=[
            f"A task enters if the mean is at least {MARGIN} points above the majority class and above word overlap, "
            f"and no seed is less than {LEAST} above either. TF-IDF is no hurdle. A task that fails is not compared."
        ],
    )
    return table, entered


def only(run: RunResults, tasks: set[str]) -> RunResults:
    """The run without the scores of other tasks."""
    kept = {name: test for name, test in run.tests.items() if name in tasks}
    scores, baselines = ([row for row in rows if row["task"] in tasks] for rows in (run.scores, run.baselines))
    return replace(run, tests=kept, scores=scores, baselines=baselines)


ADAPTED = {"pilot": "german", "other": "other-german"}  # a body's run in English: its run of step 2


def in_target(run: RunResults, task: str) -> float:
    """BL_BASE's last score in the run's target language less the majority class's, which a question has not."""
    (language,), last = run.recipe["languages"]["targets"], run.recipe["adapt"]["steps"]
    scores = [row["score"] for row in run.target_scores if (row["task"], row["step"]) == (task, last)]
    return statistics.fmean(scores) - majority_scores(run.baselines).get((task, language), 0.0)


def bodies_table(adapted: Sequence[RunResults], entered: Sequence[set[str]]) -> Table:
    """The bodies that were registered: how many tasks enter with each, and what decides at a tie."""
    tasks = sorted(set.union(*entered))
    rows = []
    for run, of_body in zip(adapted, entered, strict=True):
        scores = [in_target(run, task) for task in tasks]
        numbers = [f"{score:.1f}" for score in (*scores, statistics.fmean(scores))]
        rows.append([Cell(text) for text in (run.recipe["model"]["initialisation"], str(len(of_body)), *numbers)])
    (language,) = adapted[0].recipe["languages"]["targets"]
    note = f"Tasks: BL_BASE's score in {language} after step 2, less the majority class's."
    return Table("Which body", ["initialisation", "tasks that enter", *tasks, "mean"], rows, notes=[note])


def tuning_table(runs: Sequence[RunResults]) -> Table:
    """BL_BASE's score in the source language, a run for each setting of finetuning and each file."""
    rows = []
    for run in runs:
        recipe = Recipe.model_validate(run.recipe)
        for row in run.source_scores:
            task = recipe.finetune.tasks[row["task"]]
            path = task.test[run.source]
            overlap = references_of(task, path, run.source)["overlap"]
            settings = f"{recipe.finetune.lr:g}", f"{recipe.finetune.epochs}"
            rows.append([Cell(text) for text in (Path(path).name, *settings, f"{row['score']:.1f}", f"{overlap:.1f}")])
    return Table("The search for find", ["file", "lr", "epochs", "score", "word overlap"], rows)


# --- the search for the cheapest step 2

BY_RULE = "A quarter of the compute: what the rule chose"
BESIDE_IT = "A quarter of the compute: what was chosen beside it"


def search_blocks(first: RunResults, tries: Sequence[RunResults], tasks: set[str]) -> list[Block]:
    """Step 2 of `tries` against the first run's BL_BASE in `tasks`: shares, speedups, measured time."""
    comparison = compare_runs([first, *(only(run, tasks) for run in tries)])
    shown = [one for one in comparison.baseline_of if system_of(one) in ("multijoint", "bl_base")]
    baseline_of = dict.fromkeys(shown, "bl_base")
    losses = [row for row in comparison.losses if row["system"] in baseline_of]
    _heading, *blocks = paired_blocks(replace(comparison, pairs=[], baseline_of=baseline_of, losses=losses), [])
    return blocks


# --- how the runs went


@dataclass
class Stop:
    """When a start of scripts/study.sh ended before its end, how, and when the next one began."""

    time: str
    how: str
    went_on: str = "–"


@dataclass
class History:
    """What the log of scripts/study.sh tells: stops, and CPU seconds of each part.

    unknown: {part: starts that were killed in it, whose CPU time nobody noted}. by_hand: what was started beside the
    script, with its time.
    """

    stops: list[Stop] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    by_hand: list[str] = field(default_factory=list)


def read_history(log: Path) -> History:
    """The history in a log; an empty one without a log."""
    found, part, counted = History(), "", 0.0
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []:
        time, _, text = line.partition("  ")
        spent = re.search(r"CPU time since the start: (\d+)m([\d.]+)s (\d+)m([\d.]+)s$", text)
        if spent and part:
            total = 60 * (float(spent[1]) + float(spent[3])) + float(spent[2]) + float(spent[4])
            found.cpu[part] = found.cpu.get(part, 0.0) + total - counted
            counted = total
        if "by hand" in text:
            found.by_hand.append(line)
        elif text.startswith("start: "):
            part, counted = "", 0.0
            if found.stops and found.stops[-1].went_on == "–":
                found.stops[-1].went_on = time
        elif text.endswith(": begun"):
            part = text.removesuffix(": begun")
        elif re.match(r"\S+: done", text):
            part = ""
        elif text.startswith("interrupted: "):
            found.stops.append(Stop(text.rpartition("newest file was of ")[2], "killed, or the machine stopped"))
            found.unknown[part] = found.unknown.get(part, 0) + 1
        elif (code := re.match(r"end, exit code (\d+)", text)) and code[1] != "0":
            by_signal = code[1] in ("130", "143")
            found.stops.append(Stop(time, "stopped by a signal" if by_signal else f"exit code {code[1]}"))
    return found


def history_blocks(history: History) -> list[Block]:
    """Interruptions, and CPU time of the parts."""
    stops = Table(
        "Interruptions",
        ["stopped (UTC)", "how", "went on (UTC)"],
        [[Cell(stop.time), Cell(stop.how), Cell(stop.went_on)] for stop in history.stops],
        notes=["Each time the same command went on from the last checkpoint."] if history.stops else ["None."],
    )
    parts = Table(
        "CPU time of the parts",
        ["part", "CPU seconds", "starts killed in it, not counted"],
        [
            [Cell(part), Cell(f"{history.cpu.get(part, 0):,.0f}"), Cell(str(history.unknown.get(part, 0)))]
            for part in dict.fromkeys([*history.cpu, *filter(None, history.unknown)])
        ],
        notes=["Not counted is what was started beside the script:"] if history.by_hand else [],
    )
    return [stops, parts, *([Notes(history.by_hand)] if history.by_hand else [])]


EARLY = 500  # the step whose loss the end must not exceed


def divergences(runs: Iterable[RunResults]) -> list[str]:
    """Trainings whose loss at the end is above that of their 500th step."""
    found = []
    for run in runs:
        for row in run.losses:
            steps = run.recipe[row["stage"].replace("-", "_")]["steps"]
            at_early = EARLY / steps * row["curve"][-1][0]  # EFLOPs
            if steps > EARLY and row["final"] > next(loss for eflops, loss in row["curve"] if eflops >= at_early):
                found.append(f"{run.name}: {row['stage']} of {name_of(row['system'])} in {row['language']}")
    return found


# --- the page


@dataclass
class Study:
    """Finished runs of a study by what they are for, and its log.

    pilots: the chosen body's, in whose tasks systems are compared. bodies: (pilot, its run of step 2) of each body that
    was registered. tuned: tries of finetuning. tries: those of step 2. chosen: what the rule chose of them,
    fast: what was chosen beside it and its control, both in the other languages. elsewhere: all systems, over the body
    that was not chosen.
    """

    runs: list[RunResults]
    pilots: list[RunResults]
    bodies: list[tuple[RunResults, RunResults]]
    tuned: list[RunResults]
    tries: list[RunResults]
    chosen: list[RunResults]
    fast: list[RunResults]
    elsewhere: list[RunResults]
    log: Path

    def all_runs(self) -> list[RunResults]:
        """Each run once."""
        of_bodies = [run for pair in self.bodies for run in pair]
        of_search = [*self.tries, *self.chosen, *self.fast]
        runs = [*self.pilots, *of_bodies, *self.tuned, *self.runs, *of_search, *self.elsewhere]
        return list({run.name: run for run in runs}.values())


def read_study(work: Path, names: Sequence[str]) -> Study:
    """The study in the folder `work`; UserError without one of the runs `names`, or without a pilot."""

    def found(pattern: str) -> list[RunResults]:
        return [read_run_results(folder, folder.name) for folder in sorted(work.glob(pattern)) if folder.is_dir()]

    runs, pilots = [read_run_results(work / name, name) for name in names], found("pilot*")
    if not pilots:
        raise UserError(f"{work}: no pilot; run `bash scripts/study.sh pilot`")
    bodies = [(body, run) for pilot, german in ADAPTED.items() for body in found(pilot) for run in found(german)]
    tuned = found("find-*") + found("tested-*")
    tries, chosen, fast, elsewhere = map(found, ("try-*", "chosen", "fast*", "other-seed-*"))
    return Study(runs, pilots, bodies, tuned, tries, chosen, fast, elsewhere, work / "log.txt")


def result_blocks(study: Study) -> list[Block]:
    """All of the results in reading order: verdicts first, then what they rest on."""
    pilots = {run.name: run for run in [*study.pilots, *(pilot for pilot, _ in study.bodies)]}
    results = {name: pilot_result(run) for name, run in pilots.items()}
    entered = set.union(*(results[run.name][1] for run in study.pilots))
    if not entered:
        raise UserError("no task enters by the pilot's rule: there is nothing to compare")
    runs = [only(run, entered) for run in study.runs]
    comparison = compare_runs(runs)
    diverged = divergences(study.all_runs())
    blocks: list[Block] = [Heading("Results"), Facts(comparison.facts), verdicts(comparison)]
    blocks += [Heading("The pilot's result", 3), *(table for table, _ in results.values())]
    if study.bodies:
        by_body = [results[pilot.name][1] for pilot, _ in study.bodies]
        blocks.append(bodies_table([run for _, run in study.bodies], by_body))
    if study.tuned:
        blocks.append(tuning_table(study.tuned))
    if study.tries:
        tries = [run for run in study.runs if "multijoint" in run.recipe["systems"]] + study.tries
        blocks += [Heading("The search for a quarter of the compute", 3), *search_blocks(runs[0], tries, entered)]
        blocks.append(Notes(["What is best in these languages was chosen by them: they are not the result."]))
    for title, those in ((BY_RULE, study.chosen), (BESIDE_IT, study.fast)):
        if those:
            blocks += [Heading(title, 3), *search_blocks(runs[0], those, entered)]
    for run in (only(run, entered) for run in study.elsewhere):
        differs = compare_runs([runs[0], run]).facts[run.name]
        _heading, *paired = paired_blocks(compare_runs([run]), [])
        blocks += [Heading("Over the other body", 3), Facts({run.name: differs})]
        blocks += (block for block in paired if isinstance(block, Table))
    blocks.append(Heading("Scores", 3))
    for block in report_blocks(comparison):
        if isinstance(block, Heading):
            blocks.append(Heading(block.text, 3))
        elif isinstance(block, Table | Notes) or (isinstance(block, Figure) and block.name in FIGURES):
            blocks.append(block)
    blocks += [Heading("How the runs went", 3), *history_blocks(read_history(study.log))]
    blocks.append(Notes([f"Diverged: {', '.join(diverged)}." if diverged else "No training diverged."]))
    return blocks


ON_PAGE = (
    "Results",
    "The pilot's result",
    "The search for a quarter of the compute",
    BY_RULE,
    BESIDE_IT,
    "Over the other body",
    "Paired comparison",
    "How the runs went",
)


def short(blocks: Iterable[Block], link: str) -> list[Block]:
    """The parts of the results that go on the page, and all figures; `link` leads to the rest."""
    section, kept = "", []
    for block in blocks:
        section = block.text if isinstance(block, Heading) else section
        if section in ON_PAGE or isinstance(block, Figure):
            kept.append(block)
    return [*kept, Notes([f"All tables: [{Path(link).name}]({link})."])]


def markdown_of(blocks: Iterable[Block], folder: str = "") -> str:
    """Blocks as Markdown without a title; the figures lie in `folder`, seen from the page."""
    placed = [block._replace(name=folder + block.name) if isinstance(block, Figure) else block for block in blocks]
    return to_markdown("", placed).partition("\n\n")[2]


def inserted(page: str, results: str) -> str:
    """`page` with `results` between the marks; at its end where it has none."""
    before, begin, rest = page.partition(BEGIN)
    if begin and END not in rest:
        raise UserError(f"the page has {BEGIN} without {END} after it; put it back, or delete the first")
    return f"{before.rstrip()}\n\n{BEGIN}\n{results.strip()}\n{END}{rest.partition(END)[2] or chr(10)}"


def write(work: Path, names: Sequence[str], out: Path, page: Path) -> None:
    """Write the results of the runs `names` in `work` to the folder `out` and into `page`."""
    study = read_study(work, names)
    blocks = result_blocks(study)
    folder = f"{os.path.relpath(out, page.parent)}/"
    on_page = markdown_of(short(blocks, f"{folder}results.md"), folder)
    text = inserted(page.read_text(encoding="utf-8"), on_page)
    for block in blocks:
        if isinstance(block, Figure):
            with atomic_write(out / block.name) as file:
                file.write(block.png)
    rows = [json.dumps({"run": run.name, **row}) for run in study.all_runs() for row in run.scores]
    with atomic_write(out / "scores.json", "w") as file:
        file.write("[\n" + ",\n".join(rows) + "\n]\n")
    with atomic_write(out / "results.md", "w") as file:
        file.write(markdown_of(blocks))
    with atomic_write(page, "w") as file:
        file.write(text)
    print(f"{out / 'results.md'} and {page}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path, help="folder of the workdirs and of log.txt")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names of workdirs, the first one first")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/study", help="folder of results and figures")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/study.md", help="page that takes the results")
    options = parser.parse_args()
    return exit_code(lambda: write(options.work, options.runs, options.out, options.page))


if __name__ == "__main__":
    sys.exit(main())
