"""README's picture of score against compute, as SVG, from the scores of a report.

    python scripts/curve_picture.py REPORT… OUT.svg

REPORT: folders of the reports of runs that differ in their seed. A score is the mean over seeds, target languages and
tasks; compute is that of step 2 by the paper's formula. The picture follows the reader's light or dark mode.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import read_model, write_made
from ds_minimodel.results.curves import AVERAGE, Row, ScoreRow, training_curves, with_language_average
from ds_minimodel.results.run_results import SCORES_FILE
from ds_minimodel.results.tables import systems_of, tasks_of
from ds_minimodel.results.units import name_of, system_of, v100_unit
from ds_minimodel.systems import SYSTEMS

Curves = dict[str, list[tuple[float, float]]]  # system -> (compute in a unit, score) by rising step

LEFT, RIGHT, TOP, BOTTOM = 60, 560, 20, 270  # of the axes; the systems' names stand on the right
# Text and lines, in light and in dark mode: text 4.5 to 1 against the ground, as it is the systems' colour.
COLORS = {
    "light": ("#59636e", "#d5dade", ("#1c2126", "#8f5a00", "#0072b2", "#b34700", "#00734f")),
    "dark": ("#a7b1bb", "#39424b", ("#e6e9ec", "#e69f00", "#56b4e9", "#ff8a3d", "#2fc79a")),
}


def averages(reports: Sequence[Path]) -> tuple[Curves, str]:
    """The curves, means over all tasks, and the unit of their compute; UserError where there are none."""
    if len({report.resolve() for report in reports}) < len(reports):
        raise UserError(f"{reports[-1]}: a report is named twice; name each once")
    rows: list[Row] = []
    kinds = set()  # what each report has scores of: all must have the same
    for number, report in enumerate(reports):
        path = report / SCORES_FILE
        scores = read_model(path, list[ScoreRow], "make the report again with `ds-minimodel report`")
        kinds.add(frozenset((row.system, row.task, row.language, row.step) for row in scores))
        if len(kinds) > 1:
            raise UserError(f"{path}: other systems, tasks, languages or steps than {reports[0]} has; leave it out")
        rows += [{**row.model_dump(), "seed": (number, row.seed)} for row in scores]
    where = ", ".join(str(report / SCORES_FILE) for report in reports)
    curves = with_language_average(training_curves(rows))
    unit = v100_unit(max((row["eflops"] for row in rows), default=0))
    found: Curves = {}
    for system in systems_of(curves):
        of_tasks = [curves.get((system, task, AVERAGE), []) for task in tasks_of(curves)]
        if len({len(points) for points in of_tasks}) > 1 or not of_tasks[0]:
            raise UserError(f"{where}: {system} is not scored in all tasks and languages alike")
        if system_of(system) not in SYSTEMS:
            raise UserError(f"{where}: {system!r:.80} is no system; there are {', '.join(SYSTEMS)}")
        found[system] = [
            (points[0].eflops * unit.per_eflop, statistics.fmean(point.mean for point in points))
            for points in zip(*of_tasks, strict=True)
        ]
    if not any(curve[-1][0] for curve in found.values()):
        raise UserError(f"{where}: no scores after training in step 2; give a finished run's report")
    return found, unit.name


def picture(curves: Curves, unit: str) -> str:
    """The curves as SVG, each with its system's name and last score."""
    most = max(curve[-1][0] for curve in curves.values())
    scores = [score for curve in curves.values() for _, score in curve]
    low, high = 5 * math.floor(min(scores) / 5), 5 * math.ceil(max(scores) / 5 + 0.01)

    def x(compute: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * compute / most, 1)

    def y(score: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (score - low) / (high - low), 1)

    parts = []
    for score in range(low, high + 1, 5):
        parts.append(f'<path class="grid" d="M{LEFT} {y(score)} H{RIGHT}"/>')
        parts.append(f'<text class="quiet" x="{LEFT - 8}" y="{y(score) + 5}" text-anchor="end">{score}</text>')
    for quarter in range(5):
        compute = most * quarter / 4
        parts.append(
            f'<text class="quiet" x="{x(compute)}" y="{BOTTOM + 20}" text-anchor="middle">{compute:.3g}</text>'
        )
    middle = (LEFT + RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{BOTTOM + 44}" text-anchor="middle">compute of step 2 for a language, {unit}</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{TOP - 6}">score, mean over languages and tasks (%)</text>')
    label = float(TOP)
    for number, (system, curve) in sorted(enumerate(curves.items()), key=lambda item: -item[1][1][-1][1]):
        line = " ".join(f"{x(compute)},{y(score)}" for compute, score in curve)
        label = max(label, y(curve[-1][1]))
        parts.append(f'<polyline class="s{number}" points="{line}"/>')
        parts.append(f'<circle class="f{number}" cx="{x(curve[-1][0])}" cy="{y(curve[-1][1])}" r="4"/>')
        parts.append(
            f'<text class="f{number}" x="{RIGHT + 16}" y="{label + 5}">{name_of(system)} {curve[-1][1]:.1f}</text>'
        )
        label += 19  # so that names of systems that end alike do not overlap
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {BOTTOM + 60}" role="img" aria-labelledby="t">\n'
        f'<title id="t">Score against the compute of step 2, by system</title>\n<style>\n'
        'text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }\n'
        f"polyline {{ fill: none; stroke-width: 2.2; }}\n{_colors('light')}\n"
        f"@media (prefers-color-scheme: dark) {{\n{_colors('dark')}\n}}\n</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _colors(mode: str) -> str:
    quiet, grid, systems = COLORS[mode]
    rules = [f"text {{ fill: {systems[0]}; }}", f".quiet {{ fill: {quiet}; }}", f".grid {{ stroke: {grid}; }}"]
    rules += [
        f".s{number} {{ stroke: {color}; }} .f{number} {{ fill: {color}; }}" for number, color in enumerate(systems)
    ]
    return "\n".join(rules)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="folders of reports")
    parser.add_argument("out", type=Path, metavar="OUT.svg", help="file to write")
    options = parser.parse_args()
    return exit_code(lambda: write_made(options.out, lambda: picture(*averages(options.reports))))


if __name__ == "__main__":
    sys.exit(main())
