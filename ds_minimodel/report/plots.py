"""Curves and bars as PNG: the paper's Figures 1 and 3.

A system has the same colour in every figure. Colours are Okabe and Ito's, which colour-blind
readers tell apart; markers and line styles say the same again. Only matplotlib's objects are used,
no pyplot: no global state, no display.
"""

import io
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ds_minimodel.config.systems import BASELINE, SYSTEMS
from ds_minimodel.evaluation.comparison import Measure
from ds_minimodel.report.curves import (
    AVERAGE,
    NEAR_MAXIMAL,
    ComputeUnit,
    Speedup,
    flops_unit,
    last_points,
    name_of,
    names_in,
)

GREY = "#59636e"
INK = "#1c2126"
RC_PARAMS: dict[Any, Any] = {
    "text.parse_math": False,  # a language may have a $ in its name
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7ea",
    "lines.markersize": 3.4,
    "legend.frameon": False,
    "legend.handlelength": 3,
}
_PANELS_A_ROW = 4
_MAX_WIDTH = 13.2  # inches
_ENTRY_WIDTH = 2  # inches, of the legend
_BAR_HEIGHT = 0.38  # of one of the two bars of a measure


def plot_speedups(speedups: Mapping[str, Mapping[str, Speedup]]) -> bytes:
    """Draw Figure 1: a group of bars for all tasks together, and one for each task.

    A bar is the speedup of a system, with its range over seeds.
    """
    groups = list(next(iter(speedups.values())))
    num_bars = len(speedups) * len(groups)
    width = 0.8 / len(speedups)
    with rc_context(RC_PARAMS):
        figure = _figure(min(max(4.6, 0.9 + 0.55 * num_bars), _MAX_WIDTH), 3.2)
        axes = figure.add_subplot()
        for index, (system, by_group) in enumerate(speedups.items()):
            shift = (index - (len(speedups) - 1) / 2) * width
            name = name_of(system)
            color = SYSTEMS[system].color
            for group_index, group in enumerate(groups):
                x = group_index + shift
                speedup = by_group[group]
                axes.bar(x, speedup.value, 0.9 * width, label=name, color=color)
                axes.plot([x, x], [speedup.low, speedup.high], color=INK, linewidth=0.9)
                axes.annotate(
                    f"{speedup.value:.1f}×" if speedup.value else "never",
                    (x, max(speedup.value, speedup.high)),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                )
        _draw_level(axes, 1, name_of(BASELINE))
        axes.set_xticks(range(len(groups)), groups, color=INK)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("speedup over BL_BASE (times)")
        axes.margins(y=0.12)
        _legend(figure)
        return _png(figure)


def plot_changes(measured: Mapping[str, Measure]) -> bytes:
    """Draw two bars, before and after, for each measure of one unit.

    Args:
        measured: {name: measure}.
    """
    with rc_context(RC_PARAMS):
        figure = _figure(6.4, 0.5 + 0.55 * len(measured))
        axes = figure.add_subplot()
        for index, measure in enumerate(measured.values()):
            before, after = measure.texts
            _draw_bar(axes, index - _BAR_HEIGHT / 2, before, label="before", color="#a7b1bb")
            _draw_bar(axes, index + _BAR_HEIGHT / 2, after, label="after", color="#0072b2")
        axes.set_yticks(range(len(measured)), [*measured], color=INK)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.1)
        _legend(figure)
        return _png(figure)


def _draw_bar(axes: Axes, y: float, number: str, *, label: str, color: str) -> None:
    """Draw a horizontal bar at `y` that is as long as its number, which stands at its end."""
    length = float(number)
    axes.barh(y, length, 0.92 * _BAR_HEIGHT, label=label, color=color)
    axes.annotate(number, (length, y), (3, 0), textcoords="offset points", va="center")


def plot_scores(
    curves: pd.DataFrame, ylabel: str, task: str = "", *, near_maximal: bool = True
) -> bytes:
    """Draw Figure 3: score curves, a line for each system.

    There is a panel for each task, averaged over languages; or for each language of one task.

    Args:
        curves: As of `training_curves`.
        ylabel: Name of the scores, such as "accuracy (%)".
        task: The one task.
        near_maximal: Whether 95 % of BL_BASE's last score is drawn.
    """
    # (title, task, language) of each panel.
    if task:
        languages = names_in(curves.xs(task, level="task"), "language")
        panels = [(language, task, language) for language in languages]
    else:
        panels = [(name, name, AVERAGE) for name in names_in(curves, "task")]
    unit = flops_unit(curves["eflops"].max())
    systems = names_in(curves, "system")
    targets = NEAR_MAXIMAL * last_points(curves)["mean"]
    present = {*curves.index.droplevel("step")}
    with rc_context(RC_PARAMS):
        num_columns = min(len(panels), _PANELS_A_ROW)
        num_rows = math.ceil(len(panels) / num_columns)
        figure = _figure(max(6.4, 3.3 * num_columns), 2.7 * num_rows + 0.6)
        for index, (title, of_task, language) in enumerate(panels):
            axes = figure.add_subplot(num_rows, num_columns, index + 1)
            for system in systems:
                # A log may have been lost.
                if (system, of_task, language) in present:
                    points = curves.loc[system, of_task, language]
                    _draw_curve(axes, system, points=points, unit=unit)
            if near_maximal and BASELINE in systems:
                _draw_level(axes, targets[BASELINE, of_task, language], "95 % of BL_BASE")
            axes.set_title(title)
            axes.margins(x=0.02, y=0.06)
            axes.set_xlim(0)
            if index % _PANELS_A_ROW == 0:
                axes.set_ylabel(ylabel)
        figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)")
        _legend(figure)
        return _png(figure)


def _draw_curve(axes: Axes, system: str, points: pd.DataFrame, unit: ComputeUnit) -> None:
    drawn = SYSTEMS[system]
    x = points["eflops"] * unit.per_eflop
    axes.plot(
        x,
        points["mean"],
        color=drawn.color,
        linestyle=drawn.line,
        marker=drawn.marker,
        label=drawn.title,
    )
    low = points["mean"] - points["std"]
    high = points["mean"] + points["std"]
    axes.fill_between(x, low, high, color=drawn.color, alpha=0.13, linewidth=0)


def _draw_level(axes: Axes, height: float, label: str) -> None:
    axes.axhline(height, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.1, label=label, zorder=1)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=192, layout="constrained")


def _legend(figure: Figure) -> None:
    """Draw one legend of all panels above them."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper left",
        ncols=int(figure.get_figwidth() / _ENTRY_WIDTH),
    )


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
