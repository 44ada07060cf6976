"""Curves and bars as PNG: the paper's Figures 1 and 3.

A system has the same colour in every figure. Colours are Okabe and Ito's, which colour-blind readers tell apart;
markers and line styles say the same again. Only matplotlib's objects are used, no pyplot: no global state, no display.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ds_minimodel.models.flops import EFLOPS_PER_V100_DAY
from ds_minimodel.recipe.systems import BASELINE, SYSTEMS
from ds_minimodel.report.curves import (
    AVERAGE,
    NEAR_MAXIMAL,
    ComputeUnit,
    Row,
    Speedup,
    last_points,
    name_of,
    names_in,
    v100_unit,
)

GREY, INK = "#59636e", "#1c2126"
RC_PARAMS: dict[Any, Any] = {
    "text.parse_math": False,  # a language may have a $ in its name
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a939c",
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7ea",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.markersize": 3.4,
    "legend.frameon": False,
    "legend.handlelength": 3,
}
WEEK = 7  # days that the paper's figures show of longer runs
_PANELS_A_ROW = 4
_WIDEST = 13.2  # inches
_ENTRY, _LETTER, _ROW = 0.75, 0.072, 0.2  # inches: an entry of the legend, a letter of its label, a row more
_MOST_MARKERS = 40  # longer curves are drawn without


def plot_speedups(speedups: Mapping[str, Mapping[str, Speedup]]) -> bytes:
    """Figure 1: a group of bars for all tasks and for each; one bar a system, its speedup with its range over seeds."""
    groups, width = list(next(iter(speedups.values()))), 0.8 / len(speedups)
    with rc_context(RC_PARAMS):
        figure = _figure(min(max(4.6, 0.9 + 0.55 * len(speedups) * len(groups)), _WIDEST), 3.2)
        axes = figure.add_subplot()
        for number, (system, by_group) in enumerate(speedups.items()):
            places = [at + (number - (len(speedups) - 1) / 2) * width for at in range(len(groups))]
            heights = [by_group[group].value for group in groups]
            axes.bar(places, heights, 0.9 * width, label=name_of(system), color=SYSTEMS[system].color)
            for at, one in zip(places, by_group.values(), strict=True):
                axes.plot([at, at], [one.low, one.high], color=INK, linewidth=0.9)
                text = f"{one.value:.1f}×" if one.value else "never"
                axes.annotate(text, (at, max(one.value, one.high)), (0, 2), textcoords="offset points", ha="center")
        axes.axhline(1, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.1, label=name_of(BASELINE))
        axes.set_xticks(range(len(groups)), groups, color=INK)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("speedup over BL_BASE (times)")
        axes.margins(y=0.12)
        _legend(figure, [axes])
        return _png(figure)


def plot_average_scores(curves: pd.DataFrame, baselines: Sequence[Row]) -> bytes:
    """Figure 3: score curves averaged over languages, a panel for each task and a line for each system."""
    panels = [(task, task, AVERAGE) for task in names_in(curves, "task")]
    return _score_panels(curves, baselines, panels, "mean over languages (%)")


def plot_task_scores(curves: pd.DataFrame, baselines: Sequence[Row], task: str, metric: str) -> bytes:
    """Score curves of a task, a panel for each language. metric: what its scores are, such as "accuracy"."""
    languages = names_in(curves.xs(task, level="task"), "language")
    return _score_panels(curves, baselines, [(language, task, language) for language in languages], f"{metric} (%)")


def _score_panels(
    curves: pd.DataFrame, baselines: Sequence[Row], panels: Sequence[tuple[str, str, str]], ylabel: str
) -> bytes:
    """panels: (title, task, language)."""
    longest, ends = curves["eflops"].max(), last_points(curves)["mean"]
    unit, systems = v100_unit(longest), names_in(curves, "system")
    with rc_context(RC_PARAMS):
        figure, all_axes = _grid(len(panels))
        for axes, (title, task, language) in zip(all_axes, panels, strict=True):
            for system in systems:
                _draw_curve(axes, system, curves.loc[system, task, language], unit)
            if BASELINE in systems:
                _draw_level(axes, NEAR_MAXIMAL * ends[BASELINE, task, language], (0, (1, 1.5)), "95 % of BL_BASE")
            _draw_level(axes, _majority(baselines, task, language), (0, (5, 4)), "majority class")
            axes.set_title(title)
        return _finish(figure, all_axes, unit, ylabel, WEEK if longest > WEEK * EFLOPS_PER_V100_DAY else None)


def _majority(baselines: Sequence[Row], task: str, language: str) -> float | None:
    """Score of the majority class, of "avg" the mean over languages; None where there is none."""
    found = [row for row in baselines if (row["baseline"], row["task"]) == ("majority", task)]
    scores = [row["score"] for row in found if language in (AVERAGE, row["language"])]
    return sum(scores) / len(scores) if scores and None not in scores else None


def _draw_curve(axes: Axes, system: str, points: pd.DataFrame, unit: ComputeUnit) -> None:
    drawn, x = SYSTEMS[system], points["eflops"] * unit.per_eflop
    marker = drawn.marker if len(points) <= _MOST_MARKERS else None
    axes.plot(x, points["mean"], color=drawn.color, linestyle=drawn.line, marker=marker, label=drawn.title)
    low, high = points["mean"] - points["std"], points["mean"] + points["std"]
    axes.fill_between(x, low, high, color=drawn.color, alpha=0.13, linewidth=0)


def _draw_level(axes: Axes, height: float | None, dashes: Any, label: str) -> None:
    if height is not None:
        axes.axhline(height, color=GREY, linestyle=dashes, linewidth=1.1, label=label, zorder=1)


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
    figure: Figure, all_axes: Sequence[Axes], unit: ComputeUnit, ylabel: str, end: float | None = None
) -> bytes:
    """Label the axes, put one legend above the panels and give the figure's PNG.

    end: where the x axis ends, in `unit`; None: with the data.
    """
    for number, axes in enumerate(all_axes):
        axes.margins(x=0.02, y=0.06)
        axes.set_xlim(0, end)
        if number % _PANELS_A_ROW == 0:
            axes.set_ylabel(ylabel)
    figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)", fontsize=9.5)
    _legend(figure, all_axes)
    return _png(figure)


def _legend(figure: Figure, all_axes: Iterable[Axes]) -> None:
    """Draw one legend of all panels above them."""
    pairs = [pair for axes in all_axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in pairs}
    num_columns = max(1, int(figure.get_figwidth() / (_ENTRY + _LETTER * max(map(len, handles)))))
    num_rows = math.ceil(len(handles) / num_columns)
    figure.set_figheight(figure.get_figheight() + _ROW * (num_rows - 1))
    columns = math.ceil(len(handles) / num_rows)
    figure.legend(list(handles.values()), list(handles), loc="outside upper left", columnspacing=1.6, ncols=columns)


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
