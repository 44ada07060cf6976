"""Training curves as PNG: score against compute (the paper's Figure 3), and loss against compute.

Only matplotlib's objects are used, no pyplot: no global state, no display. Colours are Okabe and Ito's, which
colour-blind readers tell apart; markers and line styles say the same again.
"""

import io
import math

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ds_minimodel.analysis.curves import AVERAGE, near_maximal_targets
from ds_minimodel.analysis.display import SYSTEM_NAMES, flops_unit, in_order
from ds_minimodel.analysis.tables import languages_of, systems_of, tasks_of

_LOOKS = {  # system -> colour, line style, marker
    "bl_base": ("#000000", "-", "o"), "bl_small": ("#E69F00", "--", "s"), "minipost": ("#0072B2", "-.", "^"),
    "minijoint": ("#D55E00", "-", "D"), "multijoint": ("#009E73", (0, (4, 1, 1, 1, 1, 1)), "v"),
}
_STYLE = {"font.family": "DejaVu Sans", "font.size": 9.5,
          "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a939c",
          "axes.labelcolor": "#1c2126", "axes.titlesize": 10.5,
          "axes.titleweight": "bold", "axes.grid": True, "grid.color": "#e4e7ea", "grid.linewidth": 0.8,
          "axes.axisbelow": True, "xtick.color": "#59636e", "ytick.color": "#59636e", "xtick.major.size": 0,
          "ytick.major.size": 0, "lines.linewidth": 1.6, "lines.markersize": 3.4}
_PANELS_A_ROW = 4
_LEGEND_COLUMNS = {1: 3, 2: 4}  # by number of panels; wider figures hold the legend in one row
_MOST_MARKERS = 40  # longer curves are drawn without
_LOSS_BINS = 120  # a loss curve is drawn as the means of this many stretches
_QUIET = "#59636e"


def plot_averages(curves, baselines=()):
    """PNG with one panel a task: score averaged over languages against compute, one line a system."""
    panels = [(task, task, AVERAGE) for task in tasks_of(curves)
              if any(key[1:] == (task, AVERAGE) for key in curves)]
    return _score_panels(curves, panels, baselines, "score, mean over languages")


def plot_languages(task, curves, baselines=()):
    """PNG with one panel a language of `task`."""
    panels = [(language, task, language) for language in languages_of(curves, task)]
    return _score_panels(curves, panels, baselines, f"{task} score")


def plot_losses(losses):
    """PNG with one panel a language: training loss of step 2 against compute; loss rows as in losses.py."""
    rows = [row for row in losses if row["stage"] == "adapt"]
    unit = flops_unit(max(row["eflops"] for row in rows))
    languages = list(dict.fromkeys(row["language"] for row in rows))
    systems = in_order(row["system"] for row in rows)
    with rc_context(_STYLE):
        figure, all_axes = _grid(len(languages))
        for axes, language in zip(all_axes, languages, strict=True):
            for system in systems:
                curve = [(row["eflops"] * unit.per_eflop, row["loss"]) for row in rows
                         if (row["system"], row["language"]) == (system, language)]
                if curve:
                    color, style, _ = _LOOKS[system]
                    axes.plot(*zip(*_binned(curve), strict=True), color=color, linestyle=style,
                              label=SYSTEM_NAMES[system])
            axes.set_title(language, loc="left")
        return _finish(figure, all_axes, unit, "training loss (nats a masked token)")


def _score_panels(curves, panels, baselines, ylabel):
    """PNG of score curves; `panels` holds (title, task, language)."""
    unit = flops_unit(max(curve[-1].eflops for curve in curves.values()))
    targets = near_maximal_targets(curves)
    with rc_context(_STYLE):
        figure, all_axes = _grid(len(panels))
        for axes, (title, task, language) in zip(all_axes, panels, strict=True):
            for system in systems_of(curves, task):
                if (system, task, language) in curves:
                    _draw_curve(axes, system, curves[system, task, language], unit)
            _draw_level(axes, targets.get((task, language)), (0, (1, 1.5)), "95 % of BL_BASE")
            languages = languages_of(curves, task) if language == AVERAGE else [language]
            _draw_level(axes, _majority(baselines, task, languages), (0, (5, 4)), "majority class")
            axes.set_title(title, loc="left")
        return _finish(figure, all_axes, unit, ylabel)


def _draw_curve(axes, system, curve, unit):
    color, style, marker = _LOOKS[system]
    x = [point.eflops * unit.per_eflop for point in curve]
    axes.plot(x, [point.mean for point in curve], color=color, linestyle=style,
              marker=marker if len(curve) <= _MOST_MARKERS else None, label=SYSTEM_NAMES[system])
    if any(point.std for point in curve):
        low, high = ([point.mean + sign * (point.std or 0.0) for point in curve] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)


def _draw_level(axes, height, style, label):
    if height is not None:
        axes.axhline(height, color=_QUIET, linestyle=style, linewidth=1.1, label=label, zorder=1)


def _majority(baselines, task, languages):
    """Score of the majority class, mean over `languages`; None where one of them has none."""
    scores = {row["language"]: row["score"] for row in baselines
              if (row["baseline"], row["task"]) == ("majority", task)}
    if not all(language in scores for language in languages):
        return None
    return sum(scores[language] for language in languages) / len(languages)


def _binned(curve):
    """Means of consecutive stretches of (x, y) points: the noise of single updates goes, the shape stays."""
    size = math.ceil(len(curve) / _LOSS_BINS)
    for start in range(0, len(curve), size):
        xs, ys = zip(*curve[start:start + size], strict=True)
        yield sum(xs) / len(xs), sum(ys) / len(ys)


def _grid(num_panels):
    """A figure and `num_panels` axes in rows of four."""
    num_columns = min(num_panels, _PANELS_A_ROW)
    num_rows = math.ceil(num_panels / num_columns)
    width, height = (6.4, 3.3) if num_columns == 1 else (3.3 * num_columns, 2.7 * num_rows)
    figure = Figure(figsize=(width, height + 0.6), dpi=192, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, hspace=0.04)
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(num_rows, num_columns, number + 1) for number in range(num_panels)]


def _finish(figure, all_axes, unit, ylabel):
    """Label the outer axes, put one legend above the panels and give the figure's PNG."""
    for axes in all_axes:
        axes.margins(x=0.02, y=0.06)
        axes.set_xlim(left=0)
    figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)", fontsize=9.5)
    figure.supylabel(ylabel, fontsize=9.5)
    handles = {label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(),
                                                                           strict=True)}
    names = in_order(handles, list(SYSTEM_NAMES.values()))
    figure.legend([handles[name] for name in names], names, loc="outside upper left", frameon=False,
                  handlelength=3, columnspacing=1.6, ncols=_LEGEND_COLUMNS.get(len(all_axes), len(names)))
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
