"""Curves and bars as PNG: the paper's Figures 1, 3 and 4, and loss against compute.

A system has the same colour in every figure. Colours are Okabe and Ito's, and viridis for depths, which
colour-blind readers tell apart; markers and line styles say the same again. Only matplotlib's objects are used,
no pyplot: no global state, no display.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.typing import LineStyleType

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.results.curves import AVERAGE, Curves, Point, Row, near_maximal_targets
from ds_minimodel.results.paired_tables import EstimatesByTask, columns_of, difference_label, majority_scores
from ds_minimodel.results.tables import languages_of, systems_of, tasks_of
from ds_minimodel.results.units import ComputeUnit, in_order, name_of, system_of, v100_unit
from ds_minimodel.systems import BASELINE, SYSTEMS

RC_PARAMS: dict[Any, Any] = {
    "text.parse_math": False,  # a language may have a $ in its name
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a939c",
    "axes.labelcolor": "#1c2126",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#e4e7ea",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#59636e",
    "ytick.color": "#59636e",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.4,
}
GREY = "#59636e"


class LineStyle(NamedTuple):
    """Label, colour, dashes and marker of a variant's line, or of its bar."""

    label: str
    color: str
    dashes: LineStyleType
    marker: str
    fill: str = "full"  # of the marker


# Dashes and markers of a system's second, third, … variant.
_VARIANTS: list[tuple[LineStyleType, str]] = [
    ((0, (1, 1)), "o"),
    ((0, (5, 2)), "s"),
    ((0, (3, 1, 1, 1)), "^"),
    ((0, (6, 1, 1, 1)), "D"),
]
_DEPTH_MARKERS = "osD^vPX"
_BRIGHTEST = 0.85  # the yellow end of viridis does not show on white


def system_styles(variants: Iterable[str]) -> dict[str, LineStyle]:
    """Return {variant: LineStyle}: a system's first variant as always, the others in its colour with hollow markers."""
    styles: dict[str, LineStyle] = {}
    counts: dict[str, int] = {}
    for variant in in_order(variants):
        system = system_of(variant)
        drawn, number = SYSTEMS[system], counts.get(system, -1) + 1
        counts[system] = number
        shape = _VARIANTS[max(number - 1, 0) % len(_VARIANTS)]
        own = (drawn.line, drawn.marker) if variant == system else (*shape, "none")
        styles[variant] = LineStyle(name_of(variant), drawn.color, *own)
    return styles


def depth_styles(depths: Mapping[int, str]) -> dict[str, LineStyle]:
    """Return {variant: LineStyle} of {depth: variant}, dark to bright by depth, and of BL_BASE."""
    shades = [_BRIGHTEST * rank / max(len(depths) - 1, 1) for rank in range(len(depths))]
    styles = {
        variant: LineStyle(
            f"N = {depth}", to_hex(colormaps["viridis"](shade)), "-", _DEPTH_MARKERS[rank % len(_DEPTH_MARKERS)]
        )
        for rank, ((depth, variant), shade) in enumerate(zip(depths.items(), shades, strict=True))
    }
    return styles | {BASELINE: LineStyle(name_of(BASELINE), SYSTEMS[BASELINE].color, "--", "o", "none")}


# --- figures

WEEK = 7  # days that the paper's figures show of longer runs
_PANELS_A_ROW = 4
_WIDEST = 13.2  # inches
_ENTRY, _LETTER, _ROW = 0.75, 0.072, 0.2  # inches: an entry of the legend, a letter of its label, a row more
_MOST_MARKERS = 40  # longer curves are drawn without


def plot_speedups(speedups: EstimatesByTask) -> bytes:
    """Figure 1: a group of bars for all tasks and for each; one bar a variant, its speedup with its interval."""
    groups, styles = columns_of(speedups), system_styles(one for one, _ in speedups)
    width = 0.8 / len(speedups)
    with rc_context(RC_PARAMS):
        figure = _figure(min(max(4.6, 0.9 + 0.55 * len(speedups) * len(groups)), _WIDEST), 3.2)
        axes = figure.add_subplot()
        for number, ((system, _), by_group) in enumerate(speedups.items()):
            style, middle = styles[system], (number - (len(speedups) - 1) / 2) * width
            found = {at + middle: by_group[group] for at, group in enumerate(groups) if group in by_group}
            axes.bar(
                list(found),
                [estimate.value for estimate in found.values()],
                0.9 * width,
                label=style.label,
                color=style.color,
                hatch="" if style.fill == "full" else "//",
                edgecolor="white",
                linewidth=0,
            )
            for at, estimate in found.items():
                axes.plot([at, at], [estimate.low, estimate.high], color="#1c2126", linewidth=0.9)
                text = f"{estimate.value:.1f}×" if estimate.value else "never"
                axes.annotate(text, (at, estimate.high), (0, 2), textcoords="offset points", ha="center")
        axes.axhline(1, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.1, label="BL_BASE")
        axes.set_xticks(range(len(groups)), groups, color="#1c2126")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("speedup over BL_BASE (times)")
        axes.margins(y=0.12)
        _legend(figure, [axes], [*(styles[system].label for system, _ in speedups), "BL_BASE"])
        return _png(figure)


def plot_scores(
    curves: Curves,
    baselines: Sequence[Row] = (),
    depths: Mapping[int, str] | None = None,
    task: str = "",
    metric: str = "",
) -> bytes:
    """Score curves, averaged over languages in a panel for each task, or of one `task` in a panel for each language.

    Figure 3: a line for each system. Figure 4, A2 and A3: one for each depth of the mini-model, where `depths`,
    {depth: variant}, are given. metric: what the task's scores are, such as "accuracy".
    """
    styles = depth_styles(depths) if depths else system_styles(systems_of(curves))
    panels, ylabel = [(language, task, language) for language in languages_of(curves, task)], f"{metric} (%)"
    if not task:
        averaged = {of_task for _, of_task, language in curves if language == AVERAGE}
        panels, ylabel = [(one, one, AVERAGE) for one in tasks_of(curves) if one in averaged], "mean over languages (%)"
    longest = max(curve[-1].eflops for curve in curves.values())
    unit, is_longer = v100_unit(longest), longest > WEEK * EFLOPS_PER_V100_DAY
    targets = near_maximal_targets(curves)
    with rc_context(RC_PARAMS):
        figure, all_axes = _grid(len(panels))
        for axes, (title, of_task, language) in zip(all_axes, panels, strict=True):
            for system, style in styles.items():
                if (system, of_task, language) in curves:
                    _draw_curve(axes, style, curves[system, of_task, language], unit)
            _draw_level(axes, targets.get((of_task, language)), (0, (1, 1.5)), "95 % of BL_BASE")
            languages = languages_of(curves, of_task) if language == AVERAGE else [language]
            _draw_level(axes, _majority(baselines, of_task, languages), (0, (5, 4)), "majority class")
            axes.set_title(title, loc="left")
        return _finish(figure, all_axes, unit, ylabel, styles, end=WEEK if is_longer else None)


def plot_differences(differences: EstimatesByTask) -> bytes:
    """Paired differences with their intervals, a row for each two systems, a panel for each task and for all tasks."""
    columns, rows = columns_of(differences), list(differences)
    with rc_context(RC_PARAMS):
        figure = _figure(min(5.2 + 2.0 * (len(columns) - 1), _WIDEST), 0.9 + 0.26 * len(rows))
        all_axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, column in zip(all_axes, columns, strict=True):
            axes.axvline(0, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.1)
            for height, pair in enumerate(rows):
                number = differences[pair].get(column)
                if number is not None:
                    style = system_styles([pair[0]])[pair[0]]
                    axes.plot([number.low, number.high], [height, height], color=style.color)
                    axes.plot(number.value, height, style.marker, color=style.color, fillstyle=style.fill, markersize=5)
            axes.set_title(column, loc="left")
        all_axes[0].set_yticks(range(len(rows)), [difference_label(*pair) for pair in rows], color="#1c2126")
        all_axes[0].invert_yaxis()
        figure.supxlabel("difference in final score (points)", fontsize=9.5)
        return _png(figure)


def plot_losses(losses: Iterable[Row]) -> bytes:
    """Losses, a panel for each language: training loss of step 2 against compute; loss rows as in losses.py."""
    return _loss_panels([row for row in losses if row["stage"] == "adapt"], "loss (nats a predicted token)")


def plot_held_out(losses: Iterable[Row]) -> bytes:
    """The same of held-out text: bits a byte of the whole body with the pack, at the snapshots."""
    rows = [{**row, "curve": [point[1:] for point in row["held_out"]]} for row in losses if row["stage"] == "adapt"]
    return _loss_panels([row for row in rows if row["curve"]], "held-out bits a byte")


def _loss_panels(rows: Sequence[Row], ylabel: str) -> bytes:
    styles = system_styles(row["system"] for row in rows)
    languages = list(dict.fromkeys(row["language"] for row in rows))
    unit = v100_unit(max(row["curve"][-1][0] for row in rows))
    with rc_context(RC_PARAMS):
        figure, all_axes = _grid(len(languages))
        for axes, language in zip(all_axes, languages, strict=True):
            for row in rows:
                if row["language"] == language:
                    style, (eflops, loss) = styles[row["system"]], zip(*row["curve"], strict=True)
                    axes.plot(
                        [unit.per_eflop * value for value in eflops],
                        loss,
                        color=style.color,
                        linestyle=style.dashes,
                        label=style.label,
                    )
            axes.set_title(language, loc="left")
        return _finish(figure, all_axes, unit, ylabel, styles)


def _draw_curve(axes: Axes, style: LineStyle, curve: list[Point], unit: ComputeUnit) -> None:
    x = [point.eflops * unit.per_eflop for point in curve]
    axes.plot(
        x,
        [point.mean for point in curve],
        color=style.color,
        linestyle=style.dashes,
        label=style.label,
        marker=style.marker if len(curve) <= _MOST_MARKERS else None,
        fillstyle=style.fill,
    )
    if any(point.std for point in curve):
        low, high = ([point.mean + sign * (point.std or 0.0) for point in curve] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0)


def _draw_level(axes: Axes, height: float | None, dashes: LineStyleType, label: str) -> None:
    if height is not None:
        axes.axhline(height, color=GREY, linestyle=dashes, linewidth=1.1, label=label, zorder=1)


def _majority(baselines: Sequence[Row], task: str, languages: Sequence[str]) -> float | None:
    """Score of the majority class, mean over `languages`; None where one of them has none."""
    scores = majority_scores(baselines)
    if not all((task, language) in scores for language in languages):
        return None
    return sum(scores[task, language] for language in languages) / len(languages)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=192, layout=ConstrainedLayoutEngine(h_pad=0.08, hspace=0.04))
    FigureCanvasAgg(figure)
    return figure


def _grid(num_panels: int) -> tuple[Figure, list[Axes]]:
    """Figure and `num_panels` axes in rows of four."""
    num_columns = min(num_panels, _PANELS_A_ROW)
    num_rows = math.ceil(num_panels / num_columns)
    width, height = (6.4, 3.3) if num_columns == 1 else (3.3 * num_columns, 2.7 * num_rows)
    figure = _figure(width, height + 0.6)
    return figure, [figure.add_subplot(num_rows, num_columns, number + 1) for number in range(num_panels)]


def _finish(
    figure: Figure,
    all_axes: list[Axes],
    unit: ComputeUnit,
    ylabel: str,
    styles: Mapping[str, LineStyle],
    end: float | None = None,
) -> bytes:
    """Label the axes, put one legend above the panels and give the figure's PNG.

    end: where the x axis ends, in `unit`; None: with the data.
    """
    for axes in all_axes:
        axes.margins(x=0.02, y=0.06)
        axes.set_xlim(0, end)
    for axes in all_axes[::_PANELS_A_ROW]:
        axes.set_ylabel(ylabel)
    figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)", fontsize=9.5)
    names = [*dict.fromkeys(style.label for style in styles.values()), "95 % of BL_BASE", "majority class"]
    _legend(figure, all_axes, names)
    return _png(figure)


def _legend(figure: Figure, all_axes: list[Axes], names: list[str]) -> None:
    """Draw one legend above the panels, in the order of `names`; those that no panel shows are left out."""
    handles = {
        label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in names if name in handles]
    num_columns = max(1, int(figure.get_figwidth() / (_ENTRY + _LETTER * max(map(len, names)))))
    num_rows = math.ceil(len(names) / num_columns)
    figure.set_figheight(figure.get_figheight() + _ROW * (num_rows - 1))
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside upper left",
        frameon=False,
        handlelength=3,
        columnspacing=1.6,
        ncols=math.ceil(len(names) / num_rows),
    )


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
