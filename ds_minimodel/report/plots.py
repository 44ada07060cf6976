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

GREY, INK = "#59636e", "#1c2126"
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
_WIDEST = 13.2  # inches
_ENTRY = 2  # inches of the legend


def plot_speedups(speedups: Mapping[str, Mapping[str, Speedup]]) -> bytes:
    """Figure 1: a group of bars for all tasks and for each; one bar a system, its speedup with its
    range over seeds.
    """
    groups, width = list(next(iter(speedups.values()))), 0.8 / len(speedups)
    with rc_context(RC_PARAMS):
        figure = _figure(min(max(4.6, 0.9 + 0.55 * len(speedups) * len(groups)), _WIDEST), 3.2)
        axes = figure.add_subplot()
        for number, (system, by_group) in enumerate(speedups.items()):
            places = [at + (number - (len(speedups) - 1) / 2) * width for at in range(len(groups))]
            heights = [by_group[group].value for group in groups]
            axes.bar(
                places, heights, 0.9 * width, label=name_of(system), color=SYSTEMS[system].color
            )
            for at, one in zip(places, by_group.values(), strict=True):
                axes.plot([at, at], [one.low, one.high], color=INK, linewidth=0.9)
                text = f"{one.value:.1f}×" if one.value else "never"
                axes.annotate(
                    text,
                    (at, max(one.value, one.high)),
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


def plot_scores(
    curves: pd.DataFrame, ylabel: str, task: str = "", near_maximal: bool = True
) -> bytes:
    """Figure 3: score curves, a line for each system, averaged over languages in a panel for each
    task; of one task, a panel for each language.

    ylabel: what the scores are, such as "accuracy (%)". near_maximal: whether 95 % of BL_BASE's
    last score is drawn.
    """
    panels = [(name, name, AVERAGE) for name in names_in(curves, "task")]  # title, task, language
    if task:
        panels = [
            (name, task, name) for name in names_in(curves.xs(task, level="task"), "language")
        ]
    unit, systems = flops_unit(curves["eflops"].max()), names_in(curves, "system")
    targets, there = NEAR_MAXIMAL * last_points(curves)["mean"], {*curves.index.droplevel("step")}
    with rc_context(RC_PARAMS):
        num_columns = min(len(panels), _PANELS_A_ROW)
        num_rows = math.ceil(len(panels) / num_columns)
        figure = _figure(max(6.4, 3.3 * num_columns), 2.7 * num_rows + 0.6)
        for number, (title, of_task, language) in enumerate(panels):
            axes = figure.add_subplot(num_rows, num_columns, number + 1)
            for system in systems:
                if (system, of_task, language) in there:  # a log may have been lost
                    _draw_curve(axes, system, curves.loc[system, of_task, language], unit)
            if near_maximal and BASELINE in systems:
                _draw_level(axes, targets[BASELINE, of_task, language], "95 % of BL_BASE")
            axes.set_title(title)
            axes.margins(x=0.02, y=0.06)
            axes.set_xlim(0)
            if number % _PANELS_A_ROW == 0:
                axes.set_ylabel(ylabel)
        figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)")
        _legend(figure)
        return _png(figure)


def _draw_curve(axes: Axes, system: str, points: pd.DataFrame, unit: ComputeUnit) -> None:
    drawn, x = SYSTEMS[system], points["eflops"] * unit.per_eflop
    axes.plot(
        x,
        points["mean"],
        color=drawn.color,
        linestyle=drawn.line,
        marker=drawn.marker,
        label=drawn.title,
    )
    low, high = points["mean"] - points["std"], points["mean"] + points["std"]
    axes.fill_between(x, low, high, color=drawn.color, alpha=0.13, linewidth=0)


def _draw_level(axes: Axes, height: float, label: str) -> None:
    axes.axhline(height, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.1, label=label, zorder=1)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=192, layout="constrained")


def _legend(figure: Figure) -> None:
    """Draw one legend of all panels above them."""
    pairs = [
        pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    handles = {label: handle for handle, label in pairs}
    num_columns = int(figure.get_figwidth() / _ENTRY)
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper left", ncols=num_columns
    )


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
