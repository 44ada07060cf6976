"""The report's page of tables and curves, as Markdown and as HTML in one file, with scores.json."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ds_minimodel.common.files import atomic_folder, write_json
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.evaluation.comparison import (
    DIALOGUES,
    OPENINGS,
    QUESTIONS,
    Comparison,
    Measure,
)
from ds_minimodel.report import plots, tables
from ds_minimodel.report.curves import (
    BITS,
    SCORES_FILE,
    Row,
    RunResults,
    further_columns,
    name_of,
    names_in,
    near_maximal,
    shown_score,
    speedups,
    training_curves,
)
from ds_minimodel.report.found import changes_blocks, retrieval_tables
from ds_minimodel.report.render import Block, Facts, Findings, Heading, Plot, to_html, to_markdown
from ds_minimodel.report.verdict import VERDICTS_FILE, Verdict, findings, verdicts_of

TITLE = "Mini-model adaptation: report"
TITLE_OF_ADDED = "A language added to a model: report"
MAX_SHOWN = 10  # samples of a kind
# Notes below the samples of each kind.
_NOTES = {
    OPENINGS: "The likeliest tokens after the first words of a held-out document.",
    QUESTIONS: "Questions that were answered right before and are not any more come first.",
    DIALOGUES: "The first questions of dialogues that were held out.",
}
_NEXT = (
    "Load the folder model, which extend wrote, or write one with export-hf. With more --hours the "
    "same call of extend continues; with --chats and another --out it teaches a decoder to answer."
)
_NEXT_OF_PAIRS = (
    "Load the folder model, which extend wrote, as the untouched model is loaded. With more "
    "--hours the same call of extend continues. Pairs of the kind of text that is to be found, and "
    "a dictionary beside them, bring more than longer training."
)
_BANDS = "Bands: standard deviation over seeds. Dotted: near-maximal performance."
_FIGURE_1 = (
    "Figure 1: speedup over BL_BASE: how many times less compute step 2 takes to near-maximal "
    "performance, 95 % of BL_BASE's final score, on curves averaged over tasks and languages. "
    "Lines: range of single seeds."
)
_FIGURE_3 = (
    "Figure 3, averaged over languages: score against the compute of step 2, by the paper's "
    f"formula. {_BANDS}"
)


def write_report(out_folder: Path, run: RunResults) -> list[str]:
    """Write scores.json, verdicts.json, report.md, report.html and the PNGs.

    Args:
        out_folder: Where to; it is replaced as a whole.
        run: The results.

    Returns:
        What the page says first, a line each.
    """
    verdicts = verdicts_of(run)
    first = findings(run, verdicts)
    blocks = opening_blocks(verdicts) or [Findings(first)]
    if run.recipe.base:
        title = TITLE_OF_ADDED
        blocks += added_blocks(run, verdicts)
    else:
        title = TITLE
        blocks += report_blocks(run)
    with atomic_folder(out_folder) as folder:
        write_json(folder / SCORES_FILE, run.target_scores)
        write_json(folder / VERDICTS_FILE, [verdict.model_dump() for verdict in verdicts])
        for block in blocks:
            if isinstance(block, Plot):
                (folder / block.name).write_bytes(block.png)
        (folder / "report.md").write_text(to_markdown(title, blocks), encoding="utf-8")
        (folder / "report.html").write_text(to_html(title, blocks), encoding="utf-8")
    return first


def opening_blocks(verdicts: Sequence[Verdict]) -> list[Block]:
    """Return what was won and lost over a base: sentences, a picture, and further sentences.

    There are none where nothing was scored.
    """
    if not any(verdict.measures for verdict in verdicts):
        return []
    sentences: list[str] = []
    others: list[str] = []
    shown: dict[str, Measure] = {}
    for verdict in verdicts:
        # A system is named only where there are several verdicts.
        named = f"{name_of(verdict.system)}, " if len(verdicts) > 1 else ""
        sentences.append(f"{named}{verdict.opening}")
        others += [f"{named}{line}" for line in [*verdict.kept, *verdict.worse]]
        for measure in verdict.measures:
            shown[f"{named}{measure.what}"] = measure

    # The picture has the measures that share the first one's unit.
    unit = next(iter(shown.values())).unit
    drawn = {name: measure for name, measure in shown.items() if measure.unit == unit}
    better = "lower" if unit.startswith("bits") else "higher"
    caption = f"Before and after, {unit}: {better} is better."
    picture = Plot("before-and-after.png", plots.plot_changes(drawn), caption)
    blocks: list[Block] = [Findings(sentences), picture]
    if others:
        blocks.append(Findings(others))
    return blocks


def added_blocks(run: RunResults, verdicts: Sequence[Verdict]) -> list[Block]:
    """Return the page of a run over a base: scores before and after, samples and costs."""
    blocks: list[Block] = [Heading("What was asked for"), Facts(run.facts)]
    if any(verdict.measures for verdict in verdicts):
        measured = {
            f"{name_of(verdict.system)}, {verdict.language}": verdict.measures
            for verdict in verdicts
        }
        blocks += [Heading("Before and after"), tables.change_table(measured)]
    elif any(row["held_out"] for row in run.losses):
        blocks += [Heading("Losses"), tables.held_out_table(run.losses)]
    blocks += retrieval_tables(run)
    for (system, language), changes in run.changes.items():
        blocks.append(Heading(f"What changed: {name_of(system)}, {language}"))
        blocks += changes_blocks(changes, run.recipe.languages.source, language)
    for (system, language), kept in run.kept.items():
        blocks.append(Heading(f"Samples: {name_of(system)}, {language}"))
        blocks += samples_blocks(kept)
    blocks += _held_out_blocks(run)
    if len(run.recipe.systems) > 1:
        blocks += [Heading("Systems"), Facts(_systems(run))]
    if run.fertility:
        blocks += [Heading("Vocabulary"), tables.fertility_table(run.fertility)]
    costs = tables.cost_table(
        recipe_costs(run.recipe), in_days=False, languages=len(run.recipe.languages.targets)
    )
    following = _NEXT_OF_PAIRS if run.recipe.learns_from_pairs else _NEXT
    return [*blocks, Heading("Cost"), costs, Heading("What to do next"), Findings([following])]


def samples_blocks(comparison: Comparison) -> list[Block]:
    """Show what two decoders write, side by side, in a table for each kind of prompt."""
    blocks: list[Block] = []
    for kind, note in _NOTES.items():
        samples = [sample for sample in comparison.samples if sample.kind == kind]
        if samples:
            blocks.append(tables.samples_table(kind, samples[:MAX_SHOWN], note))
    return blocks


def comparison_page(title: str, comparison: Comparison) -> str:
    """Return the comparison of a decoder with the untouched one, as Markdown."""
    blocks: list[Block] = [Findings([*comparison.sentences, *comparison.worse])]
    blocks += [tables.measures_table(comparison.measures), *samples_blocks(comparison)]
    return to_markdown(title, blocks)


def _systems(run: RunResults) -> dict[str, str]:
    return {system.title: system.about for system in run.recipe.chosen_systems if system.about}


def _held_out_blocks(run: RunResults) -> list[Block]:
    """Draw the loss of held-out text, where it has more than two points."""
    costs = tables.adapt_costs(recipe_costs(run.recipe))
    task = "held-out text"
    rows: list[Row] = []
    for loss_row in run.losses:
        if loss_row["stage"] != "adapt" or len(loss_row["held_out"]) <= 2:
            continue
        system = loss_row["system"]
        for step, loss in loss_row["held_out"]:
            row = {
                "system": system,
                "task": task,
                "language": loss_row["language"],
                "seed": 1,
                "step": step,
                "eflops": costs[system] / run.recipe.adapt.steps * step,
                "score": loss,
            }
            rows.append(row)
    if not rows:
        return []
    drawn = plots.plot_scores(
        training_curves(rows), ylabel="nats per token", task=task, near_maximal=False
    )
    caption = (
        "Loss on held-out text during the training, in nats per token. Lower is better; it does "
        "not compare models of different vocabularies."
    )
    return [Heading("Held-out loss"), Plot("held-out-loss.png", drawn, caption)]


def report_blocks(run: RunResults) -> list[Block]:
    """Return the paper's page as blocks, those that the run has data for.

    The picture of how systems compare comes first.
    """
    costs = recipe_costs(run.recipe)
    blocks: list[Block] = []
    gains = speedups(run.target_scores) if run.target_scores else {}
    if gains:
        blocks.append(Plot("figure-1.png", plots.plot_speedups(gains), _FIGURE_1))
    blocks += [Facts(run.facts), Heading("Systems"), Facts(_systems(run))]
    if run.target_scores:
        curves = training_curves(run.target_scores)
        if gains:
            blocks.append(tables.speedups_table(gains))
        # With one language each task's figure would be the same.
        if len(run.recipe.languages.targets) > 1:
            drawn = plots.plot_scores(curves, "mean over languages")
            blocks += [Heading("Training curves"), Plot("figure-3.png", drawn, _FIGURE_3)]
        for task in names_in(curves, "task"):
            blocks += _task_blocks(run, task, curves=curves, costs=costs)
        if run.source_scores:
            source_curves = training_curves(run.source_scores)
            table = tables.source_table(run.recipe.languages.source, source_curves)
            blocks += [Heading("Source language"), table]
    cost_table = tables.cost_table(costs, languages=len(run.recipe.languages.targets))
    blocks += [Heading("Costs"), cost_table]
    if any(row["held_out"] for row in run.losses):
        blocks += [Heading("Losses"), tables.held_out_table(run.losses)]
    return blocks


def _task_blocks(
    run: RunResults, task: str, curves: pd.DataFrame, costs: Sequence[Row]
) -> list[Block]:
    """Return tables 2 and 3 and Figure 3 of a task by language, and its further scores."""
    rows = [row for row in run.target_scores if row["task"] == task]
    metric = run.metrics[task]
    title = metric if task in run.recipe.finetune.finetuned_tasks else f"{metric}, not finetuned"
    table = tables.final_scores_table(task, title, curves=curves, costs=costs)
    blocks: list[Block] = [Heading(task), table]
    for column in further_columns(rows):
        table = tables.final_scores_table(
            task,
            column.replace("_", " "),
            curves=training_curves(rows, column),
            costs=costs,
            scale=tables.SCALES.get(column, tables.PERCENT),
        )
        blocks.append(table)
    estimates = near_maximal(curves)
    if estimates:
        blocks.append(tables.near_maximal_table(task, estimates))
    caption = f"Figure 3 ({task}): score against the compute of step 2, by language. {_BANDS}"
    is_percent = shown_score(rows[0], metric)[0] not in BITS
    drawn = plots.plot_scores(curves, f"{metric} (%)" if is_percent else metric, task)
    return [*blocks, Plot(f"figure-3-{task}.png", drawn, caption)]
