"""The report: scores.json, and one page of tables and curves as Markdown and as HTML that stands alone."""

from ds_minimodel.analysis import plots, tables
from ds_minimodel.analysis.curves import near_maximal, training_curves, with_language_average
from ds_minimodel.analysis.render import Facts, Figure, Heading, to_html, to_markdown
from ds_minimodel.errors import UserError
from ds_minimodel.files import atomic_folder, write_json

TITLE = "Mini-model adaptation: report"
_COLUMNS = ("system", "task", "language", "seed", "step", "eflops", "score")


def write_report(out_folder, scores, costs, baselines, losses, facts):
    """Write scores.json, report.md, report.html and the PNGs; `out_folder` is replaced as a whole.

    scores     rows {"system", "task", "language", "seed", "step", "eflops", "score"} (see curves.py)
    costs      rows of flops.recipe_costs
    baselines  rows {"baseline", "task", "language", "score"}; the one called "majority" is drawn in plots
    losses     rows {"system", "stage", "language", "step", "eflops", "loss"} (see losses.py)
    facts      {label: text}, said at the head of the page: recipe, model, seeds, device, date, …
    Scores are in points, 0 to 100. Raises UserError where there are no scores.
    """
    if not scores:
        raise UserError(f"{out_folder}: there are no scores to report; run evaluate first")
    blocks = report_blocks(scores, costs, baselines, losses, facts)
    with atomic_folder(out_folder) as folder:
        write_json(folder / "scores.json", [{key: row[key] for key in _COLUMNS} for row in scores])
        for block in blocks:
            if isinstance(block, Figure):
                (folder / block.name).write_bytes(block.png)
        (folder / "report.md").write_text(to_markdown(TITLE, blocks), encoding="utf-8")
        (folder / "report.html").write_text(to_html(TITLE, blocks), encoding="utf-8")


def report_blocks(scores, costs, baselines, losses, facts):
    """The page as a list of blocks, in reading order."""
    curves = training_curves(with_language_average(scores))
    estimates = near_maximal(curves)
    blocks = [Facts(facts)]
    if estimates:
        blocks.append(tables.summary_table(curves, estimates, costs))
    blocks += [Heading("Training curves"),
               Figure("curves.png", plots.plot_averages(curves, baselines),
                      "Score against the compute of step 2, averaged over languages. Bands: standard "
                      "deviation over finetuning seeds. Dotted: near-maximal performance.")]
    for task in tables.tasks_of(curves):
        blocks += [Heading(task), tables.final_scores_table(task, curves, costs, baselines)]
        if estimates:
            blocks.append(tables.near_maximal_table(task, curves, estimates))
        blocks.append(Figure(f"curves-{task}.png", plots.plot_languages(task, curves, baselines),
                             f"{task}: score against the compute of step 2, by language."))
    blocks += [Heading("Costs"), tables.cost_table(costs)]
    if losses:
        blocks += [Heading("Losses"), tables.loss_table(losses)]
        if any(row["stage"] == "adapt" for row in losses):
            blocks.append(Figure("losses.png", plots.plot_losses(losses),
                                 "Training loss of step 2 against compute, by language."))
    return blocks
