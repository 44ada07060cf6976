"""How lines and bars look: the same colour for a system in every figure.

Colours are Okabe and Ito's, and viridis for depths, which colour-blind readers tell apart; markers and line
styles say the same again.
"""

from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.colors import to_hex

from ds_minimodel.analysis.curves import BASELINE
from ds_minimodel.analysis.display import in_order, name_of, system_of

STYLE = {"font.family": "DejaVu Sans", "font.size": 9.5,
         "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a939c",
         "axes.labelcolor": "#1c2126", "axes.titlesize": 10.5,
         "axes.titleweight": "bold", "axes.grid": True, "grid.color": "#e4e7ea", "grid.linewidth": 0.8,
         "axes.axisbelow": True, "xtick.color": "#59636e", "ytick.color": "#59636e", "xtick.major.size": 0,
         "ytick.major.size": 0, "lines.linewidth": 1.6, "lines.markersize": 3.4}
QUIET = "#59636e"


class Look(NamedTuple):
    label: str
    color: str
    style: object
    marker: str
    fill: str = "full"  # of the marker


_SYSTEMS = {
    "bl_base": ("#000000", "-", "o"), "bl_small": ("#E69F00", "--", "s"), "minipost": ("#0072B2", "-.", "^"),
    "minijoint": ("#D55E00", "-", "D"), "multijoint": ("#009E73", (0, (4, 1, 1, 1, 1, 1)), "v"),
}
# Line styles and markers of a system's second, third, … variant.
_VARIANTS = [((0, (1, 1)), "o"), ((0, (5, 2)), "s"), ((0, (3, 1, 1, 1)), "^"), ((0, (6, 1, 1, 1)), "D")]
_DEPTH_MARKERS = "osD^vPX"
_BRIGHTEST = 0.85  # the yellow end of viridis does not show on white


def system_looks(variants):
    """{variant: Look}: a system's first variant as always, the others in its colour with hollow markers."""
    looks, counts = {}, {}
    for variant in in_order(variants):
        system = system_of(variant)
        color, style, marker = _SYSTEMS[system]
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
    looks = {variant: Look(f"N = {depth}", to_hex(colormaps["viridis"](shade)), "-",
                           _DEPTH_MARKERS[rank % len(_DEPTH_MARKERS)])
             for rank, ((depth, variant), shade) in enumerate(zip(depths.items(), shades, strict=True))}
    return looks | {BASELINE: Look(name_of(BASELINE), _SYSTEMS[BASELINE][0], "--", "o", "none")}
