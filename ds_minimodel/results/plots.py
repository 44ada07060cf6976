"""How lines and bars look: the same colour for a system in every figure.

Colours are Okabe and Ito's, and viridis for depths, which colour-blind readers tell apart; markers and line
styles say the same again.
"""

import io
import math
import statistics
from typing import NamedTuple

from matplotlib import colormaps, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.results.curves import AVERAGE, near_maximal_targets, speedup
from ds_minimodel.results.tables import languages_of, systems_of, tasks_of
from ds_minimodel.results.units import in_order, name_of, system_of, v100_unit
from ds_minimodel.systems import BASELINE, SYSTEMS

STYLE = {
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
QUIET = "#59636e"


class Look(NamedTuple):
    label: str
    color: str
    style: object
    marker: str
    fill: str = "full"  # of the marker


# Line styles and markers of a system's second, third, … variant.
_VARIANTS = [((0, (1, 1)), "o"), ((0, (5, 2)), "s"), ((0, (3, 1, 1, 1)), "^"), ((0, (6, 1, 1, 1)), "D")]
_DEPTH_MARKERS = "osD^vPX"
_BRIGHTEST = 0.85  # the yellow end of viridis does not show on white


def system_looks(variants):
    """{variant: Look}: a system's first variant as always, the others in its colour with hollow markers."""
    looks, counts = {}, {}
    for variant in in_order(variants):
        system = system_of(variant)
        drawn = SYSTEMS[system]
        color, style, marker = drawn.color, drawn.line, drawn.marker
        number = counts[system] = counts.get(system, -1) + 1
        if variant == system:
            looks[variant] = Look(name_of(variant), color, style, marker)
        else:
            style, marker = _VARIANTS[max(number - 1, 0) % len(_VARIANTS)]
            looks[variant] = Look(name_of(variant), color, style, marker, "none")
    return looks


def depth_looks(depths):
    """{variant: Look} of {depth: variant}, dark to bright by depth, and of bl_base."""
    shades = [_BRIGHTEST * rank / max(len(depths) - 1, 1) for rank in range(len(depths))]
    looks = {
        variant: Look(
            f"N = {depth}", to_hex(colormaps["viridis"](shade)), "-", _DEPTH_MARKERS[rank % len(_DEPTH_MARKERS)]
        )
        for rank, ((depth, variant), shade) in enumerate(zip(depths.items(), shades, strict=True))
    }
    return looks | {BASELINE: Look(name_of(BASELINE), SYSTEMS[BASELINE].color, "--", "o", "none")}


# --- merged from ds_minimodel.results.plots: Curves and bars as PNG: the paper's Figures 1, 3 and 4, and loss against compute. Only matplotlib's objects are used, no pyplot: no global state, no display.


WEEK = 7  # days that the paper's figures show of longer runs
_PANELS_A_ROW = 4
_WIDEST = 13.2  # inches
_ENTRY, _LETTER, _ROW = 0.75, 0.072, 0.2  # inches: an entry of the legend, a letter of its label, a row more
_AVERAGE_LABEL = "mean over languages (%)"
_MOST_MARKERS = 40  # longer curves are drawn without


def plot_speedups(estimates, tasks):
    """Figure 1: a group of bars for each task, and their mean; one bar a system, its speedup over bl_base.

    None where no system but bl_base has a speedup.
    """
    systems = in_order(system for system, _, _ in estimates if system != BASELINE)
    heights = {system: [speedup(estimates, system, task).mean for task in tasks] for system in systems}
    heights = {system: values for system, values in heights.items() if any(values)}
    if not heights:
        return None
    groups = [*tasks, "mean over tasks"] if len(tasks) > 1 else tasks
    looks, width = system_looks(heights), 0.8 / len(heights)
    with rc_context(STYLE):
        figure = _figure(min(max(4.6, 0.9 + 0.55 * len(heights) * len(groups)), _WIDEST), 3.2)
        axes = figure.add_subplot()
        for number, (system, values) in enumerate(heights.items()):
            if len(tasks) > 1:
                values = [*values, statistics.fmean(values) if all(values) else None]
            middles = [group + (number - (len(heights) - 1) / 2) * width for group in range(len(groups))]
            bars = axes.bar(
                middles,
                [value or 0 for value in values],
                0.9 * width,
                label=looks[system].label,
                color=looks[system].color,
                hatch="" if looks[system].fill == "full" else "//",
                edgecolor="white",
                linewidth=0,
            )
            axes.bar_label(bars, [f"{value:.1f}×" if value else "–" for value in values], padding=2)
        axes.axhline(1, color=QUIET, linestyle=(0, (1, 1.5)), linewidth=1.1, label="BL_BASE")
        axes.set_xticks(range(len(groups)), groups, color="#1c2126")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("speedup over BL_BASE (times)")
        axes.margins(y=0.12)
        _legend(figure, [axes], [*(looks[system].label for system in heights), "BL_BASE"])
        return _png(figure)


def plot_averages(curves, baselines=()):
    """Figure 3 in short, a panel for each task: score averaged over languages, one line a system."""
    panels = [(task, task, AVERAGE) for task in tasks_of(curves) if any(key[1:] == (task, AVERAGE) for key in curves)]
    return _score_panels(curves, panels, system_looks(systems_of(curves)), baselines, _AVERAGE_LABEL)


def plot_languages(task, metric, curves, baselines=()):
    """Figure 3 for one task, a panel for each language. metric: what the scores are, such as "accuracy"."""
    panels = [(language, task, language) for language in languages_of(curves, task)]
    return _score_panels(curves, panels, system_looks(systems_of(curves)), baselines, f"{metric} (%)")


def plot_depths(curves, depths):
    """Figure 4, a panel for each task: a line for each depth of the mini-model, averaged over languages.

    depths: {depth: variant}.
    """
    panels = [(task, task, AVERAGE) for task in tasks_of(curves)]
    return _score_panels(curves, panels, depth_looks(depths), (), _AVERAGE_LABEL)


def plot_depth_languages(task, metric, curves, depths):
    """Figures A2 and A3 for one task, a panel for each language: a line for each depth of the mini-model."""
    panels = [(language, task, language) for language in languages_of(curves, task)]
    return _score_panels(curves, panels, depth_looks(depths), (), f"{metric} (%)")


def plot_losses(losses):
    """A panel for each language: training loss of step 2 against compute; loss rows as in losses.py."""
    rows = [row for row in losses if row["stage"] == "adapt"]
    looks = system_looks(row["system"] for row in rows)
    languages = list(dict.fromkeys(row["language"] for row in rows))
    unit = v100_unit(max(row["curve"][-1][0] for row in rows))
    with rc_context(STYLE):
        figure, all_axes = _grid(len(languages))
        for axes, language in zip(all_axes, languages, strict=True):
            for row in rows:
                if row["language"] == language:
                    look, (eflops, loss) = looks[row["system"]], zip(*row["curve"], strict=True)
                    axes.plot(
                        [unit.per_eflop * value for value in eflops],
                        loss,
                        color=look.color,
                        linestyle=look.style,
                        label=look.label,
                    )
            axes.set_title(language, loc="left")
        return _finish(figure, all_axes, unit, "loss (nats a masked token)", looks)


def _score_panels(curves, panels, looks, baselines, ylabel):
    """PNG of score curves; `panels` holds (title, task, language). Variants without a look are not drawn."""
    longest = max(curve[-1].eflops for curve in curves.values())
    unit, is_longer = v100_unit(longest), longest > WEEK * EFLOPS_PER_V100_DAY
    targets = near_maximal_targets(curves)
    with rc_context(STYLE):
        figure, all_axes = _grid(len(panels))
        for axes, (title, task, language) in zip(all_axes, panels, strict=True):
            for system, look in looks.items():
                if (system, task, language) in curves:
                    _draw_curve(axes, look, curves[system, task, language], unit)
            _draw_level(axes, targets.get((task, language)), (0, (1, 1.5)), "95 % of BL_BASE")
            languages = languages_of(curves, task) if language == AVERAGE else [language]
            _draw_level(axes, _majority(baselines, task, languages), (0, (5, 4)), "majority class")
            axes.set_title(title, loc="left")
        return _finish(figure, all_axes, unit, ylabel, looks, end=WEEK if is_longer else None)


def _draw_curve(axes, look, curve, unit):
    x = [point.eflops * unit.per_eflop for point in curve]
    axes.plot(
        x,
        [point.mean for point in curve],
        color=look.color,
        linestyle=look.style,
        label=look.label,
        marker=look.marker if len(curve) <= _MOST_MARKERS else None,
        fillstyle=look.fill,
    )
    if any(point.std for point in curve):
        low, high = ([point.mean + sign * (point.std or 0.0) for point in curve] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=look.color, alpha=0.13, linewidth=0)


def _draw_level(axes, height, style, label):
    if height is not None:
        axes.axhline(height, color=QUIET, linestyle=style, linewidth=1.1, label=label, zorder=1)


def _majority(baselines, task, languages):
    """Score of the majority class, mean over `languages`; None where one of them has none."""
    scores = {
        row["language"]: row["score"] for row in baselines if (row["baseline"], row["task"]) == ("majority", task)
    }
    if not all(language in scores for language in languages):
        return None
    return sum(scores[language] for language in languages) / len(languages)


def _figure(width, height):
    figure = Figure(figsize=(width, height), dpi=192, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, hspace=0.04)
    FigureCanvasAgg(figure)
    return figure


def _grid(num_panels):
    """A figure and `num_panels` axes in rows of four."""
    num_columns = min(num_panels, _PANELS_A_ROW)
    num_rows = math.ceil(num_panels / num_columns)
    width, height = (6.4, 3.3) if num_columns == 1 else (3.3 * num_columns, 2.7 * num_rows)
    figure = _figure(width, height + 0.6)
    return figure, [figure.add_subplot(num_rows, num_columns, number + 1) for number in range(num_panels)]


def _finish(figure, all_axes, unit, ylabel, looks, end=None):
    """Label the axes, put one legend above the panels and give the figure's PNG.

    end: where the x axis ends, in `unit`; None: with the data.
    """
    for axes in all_axes:
        axes.margins(x=0.02, y=0.06)
        axes.set_xlim(0, end)
    for axes in all_axes[::_PANELS_A_ROW]:
        axes.set_ylabel(ylabel)
    figure.supxlabel(f"compute of step 2 ({unit.name}, by formula)", fontsize=9.5)
    names = [*dict.fromkeys(look.label for look in looks.values()), "95 % of BL_BASE", "majority class"]
    _legend(figure, all_axes, names)
    return _png(figure)


def _legend(figure, all_axes, names):
    """One legend above the panels, in the order of `names`; those that no panel shows are left out."""
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


def _png(figure):
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
