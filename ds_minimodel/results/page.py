"""Report page: scores.json, and one page of tables and curves as Markdown and as HTML that stands alone."""

from collections.abc import Iterable
from pathlib import Path

from ds_minimodel.common.files import atomic_folder, write_json
from ds_minimodel.results import plots, tables
from ds_minimodel.results.comparison import Comparison, compare_runs
from ds_minimodel.results.curves import (
    Key,
    Point,
    Row,
    further_columns,
    near_maximal,
    training_curves,
    with_language_average,
)
from ds_minimodel.results.paired import speedup, unit_curves
from ds_minimodel.results.paired_tables import (
    by_task,
    difference_label,
    differences_table,
    majority_scores,
    paces_of,
    shares_table,
    speedups_table,
    times_table,
)
from ds_minimodel.results.render import Block, Facts, Heading, Notes, Plot, to_html, to_markdown
from ds_minimodel.results.run_results import SCORES_FILE, RunResults, write_run_results
from ds_minimodel.results.units import in_order, paper_label
from ds_minimodel.systems import SYSTEMS

TITLE = "Mini-model adaptation: report"
OF_SOURCE = "source_pack_"  # begins the name of a score that the source language's own pack has
_BANDS = "Bands: standard deviation over seeds. Dotted: near-maximal performance."


def write_report(out_folder: Path, runs: list[RunResults]) -> None:
    """Write scores.json, report.md, report.html and the PNGs; `out_folder` is replaced as a whole.

    The report of one run holds its run.json too, for reports over several. UserError where runs do not
    compare.
    """
    blocks = report_blocks(compare_runs(runs))
    with atomic_folder(out_folder) as folder:
        named = [(row, {"run": run.name} if len(runs) > 1 else {}) for run in runs for row in run.target_scores]
        write_json(folder / SCORES_FILE, [{**name, **row} for row, name in named])
        if len(runs) == 1:
            write_run_results(runs[0], folder)
        for block in blocks:
            if isinstance(block, Plot):
                (folder / block.name).write_bytes(block.png)
        (folder / "report.md").write_text(to_markdown(TITLE, blocks), encoding="utf-8")
        (folder / "report.html").write_text(to_html(TITLE, blocks), encoding="utf-8")


def report_blocks(comparison: Comparison) -> list[Block]:
    """Page as a list of blocks, in reading order; what it lacks data for is named at its end."""
    left_out: list[str] = []
    blocks: list[Block] = [Facts(comparison.facts)]
    if comparison.scores:
        blocks += _score_blocks(comparison, left_out)
        blocks += _depth_blocks(comparison, left_out)
        blocks += _seed_blocks(comparison, left_out)
        if comparison.is_joint:
            blocks += paired_blocks(comparison, left_out)
    else:
        left_out.append("Tables 2, 3, 5, A1 to A5, Figures 1, 3 and 4: nothing was scored in a target language.")
    if comparison.development:
        blocks += [Heading("Finetuning"), tables.development_table(comparison.development)]
    elif comparison.scores:
        left_out.append("Scores during finetuning: no task names a development file (dev).")
    blocks += [Heading("Costs"), tables.cost_table(comparison.costs)]
    blocks += _loss_blocks(comparison, left_out)
    if left_out:
        blocks += [Heading("Left out"), Notes(left_out)]
    return blocks


def _curves(rows: Iterable[Row], metric: str = "score") -> dict[Key, list[Point]]:
    return with_language_average(training_curves(rows, metric))


def _score_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    """Summary, Figures 1 and 3, Tables 2 and 3 (A1 and A2 for XQuAD) and 5; other depths are Figure 4's."""
    other_depths = {variant for depths in comparison.depths.values() for variant in depths.values()}
    rows = [row for row in comparison.scores if row["system"] not in other_depths - SYSTEMS.keys()]
    curves = _curves(rows)
    estimates, tasks = near_maximal(curves), tables.tasks_of(curves)
    blocks = [tables.summary_table(curves, comparison.costs), *_speedup_blocks(comparison, left_out)]
    blocks += [
        Heading("Training curves"),
        Plot(
            "figure-3.png",
            plots.plot_scores(curves, comparison.baselines),
            "Figure 3, averaged over languages: score against the compute of step 2, by the "
            f"paper's formula. {_BANDS} Of runs longer than a week on one V100 the first week is "
            "shown.",
        ),
    ]
    for task in tasks:
        metric, is_finetuned = comparison.metrics[task], task not in comparison.not_finetuned
        blocks += [
            Heading(task),
            tables.final_scores_table(task, metric, curves, comparison.costs, comparison.baselines, is_finetuned),
        ]
        of_task = [row for row in rows if row["task"] == task]
        further = {
            column: _curves((row for row in of_task if column in row), column) for column in further_columns(of_task)
        }
        for column, scores in further.items():
            if not column.startswith(OF_SOURCE):
                scale, of_source = tables.SCALES.get(column, tables.PERCENT), further.get(OF_SOURCE + column)
                title, costs = column.replace("_", " "), comparison.costs
                blocks.append(tables.final_scores_table(task, title, scores, costs, (), is_finetuned, scale, of_source))
        if any(estimated == task for _, estimated, _ in estimates):
            blocks.append(tables.near_maximal_table(task, curves, estimates))
        blocks.append(
            Plot(
                f"figure-3-{task}.png",
                plots.plot_scores(curves, comparison.baselines, None, task, metric),
                f"{paper_label('Figure 3', task)}: score against the compute of step 2, by language. {_BANDS}",
            )
        )
        blocks += tables.example_tables([row for row in comparison.examples if row["task"] == task])
    if "xquad" not in {task.lower() for task in tasks}:
        left_out.append("Tables A1, A2 and Figure A1: they are Tables 3, 2 and Figure 3 of a task named xquad.")
    source = training_curves(comparison.source_scores)
    if source:
        is_finetuned = any(task not in comparison.not_finetuned for _, task, _ in source)
        return [*blocks, Heading("Source language"), tables.source_table(comparison.source, source, is_finetuned)]
    left_out.append(f"Table 5: no task was scored in {comparison.source}, the source language.")
    return blocks


def _speedup_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    """Speedups over BL_BASE and differences at equal compute, and Figure 1."""
    if not comparison.baseline_of:
        left_out.append("Figure 1, Tables 3 and A4: near-maximal performance refers to BL_BASE, which no run has.")
        return []
    curves, paces = unit_curves(comparison.scores), paces_of(comparison.losses, tables.adapt_costs(comparison.costs))
    speedups = by_task(curves, _with_baselines(comparison), speedup)
    if not speedups:
        left_out.append("Figure 1: no system but BL_BASE has scores beside it.")
        return []
    caption = (
        "Figure 1: speedup over BL_BASE: so many times less compute of step 2 to near-maximal performance, 95 % of "
        "BL_BASE's final score, on curves averaged over tasks and languages; lines: 95 % intervals."
    )
    return [speedups_table(speedups, curves, paces), Plot("figure-1.png", plots.plot_speedups(speedups), caption)]


def _with_baselines(comparison: Comparison) -> list[tuple[str, str]]:
    """Each variant with the BL_BASE that it is measured against, which is none with itself."""
    baseline_of = comparison.baseline_of
    return [(one, baseline_of[one]) for one in in_order(baseline_of) if one != baseline_of[one]]


def _depth_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    """Figure 4 and Tables A3 and A4 for each system of which there are several depths."""
    if not comparison.depths:
        left_out.append(
            "Figure 4, Tables A3 and A4: they compare runs that differ in mini.depth alone; add such runs by --with."
        )
    blocks: list[Block] = []
    for system, depths in comparison.depths.items():
        name = SYSTEMS[system].title
        curves = tables.depth_curves(comparison.scores, depths)
        if not curves:
            left_out.append(f"Figure 4, Tables A3 and A4 for {name}: its depths have no task and language in common.")
            continue
        estimates = near_maximal(curves)
        blocks += [
            Heading(f"Depth of the mini-model: {name}"),
            Plot(
                f"figure-4-{system}.png",
                plots.plot_scores(curves, (), depths),
                f"Figure 4: {name} by depth N of the mini-model, averaged over the languages that "
                f"all depths were scored in. {_BANDS}",
            ),
            tables.depth_scores_table(depths, curves, comparison.costs),
        ]
        if estimates:
            blocks.append(tables.depth_estimates_table(depths, estimates, curves))
        blocks += [
            Plot(
                f"figure-4-{system}-{task}.png",
                plots.plot_scores(curves, (), depths, task, comparison.metrics[task]),
                f"Figures A2 and A3 ({task}): {name} by depth of the mini-model, by language. {_BANDS}",
            )
            for task in tables.tasks_of(curves)
        ]
    return blocks


def _seed_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    table = tables.seeds_table(comparison.scores)
    if table is None:
        left_out.append("Table A5: no system was run with several seeds; add such runs by --with.")
        return []
    return [Heading("Variance across pretraining runs"), table]


def paired_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    """Systems compared unit by unit: differences with intervals, shares, measured time."""
    curves, compared = unit_curves(comparison.scores), _with_baselines(comparison)
    spent = tables.adapt_costs(comparison.costs)
    differences = by_task(curves, comparison.pairs)
    lacking = [difference_label(*pair) for pair in comparison.pairs if pair not in differences]
    if lacking:
        left_out.append(f"Paired differences {', '.join(lacking)}: no cell and seeds in common.")
    blocks: list[Block] = [Heading("Paired comparison")]
    if differences:
        caption = "Paired differences in final score with their 95 % intervals, for all tasks together and for each."
        blocks += [
            differences_table("Paired differences at training completion", differences),
            Plot("differences.png", plots.plot_differences(differences), caption),
        ]
    if compared:
        blocks.append(shares_table(curves, compared, majority_scores(comparison.baselines)))
    in_source = by_task(unit_curves(comparison.source_scores), compared)
    if in_source:
        blocks.append(differences_table(f"Paired differences in the source language, {comparison.source}", in_source))
    times = times_table(comparison.losses, spent)
    if times:
        blocks.append(times)
    else:
        left_out.append("Measured time of step 2: no run's report holds it; make their reports again.")
    return blocks


def _loss_blocks(comparison: Comparison, left_out: list[str]) -> list[Block]:
    if not comparison.losses:
        left_out.append("Losses: no run logged any.")
        return []
    blocks: list[Block] = [Heading("Losses"), tables.loss_table(comparison.losses)]
    if any(row["stage"] == "adapt" for row in comparison.losses):
        blocks.append(
            Plot(
                "losses.png",
                plots.plot_losses(comparison.losses),
                "Training loss of step 2 against compute, by language.",
            )
        )
    if not any(row["held_out"] for row in comparison.losses):
        left_out.append("Held-out loss: no text was held out (data.held_out).")
        return blocks
    blocks.append(tables.held_out_table(comparison.losses))
    if any(row["stage"] == "adapt" and row["held_out"] for row in comparison.losses):
        caption = (
            "Held-out loss of the whole body with the pack at the snapshots of step 2, against compute, by language."
        )
        blocks.append(Plot("held-out.png", plots.plot_held_out(comparison.losses), caption))
    return blocks
