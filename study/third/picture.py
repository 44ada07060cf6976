"""The picture of score against compute, as SVG that follows the reader's light or dark mode."""

import math

from ds_minimodel.recipe.systems import SYSTEMS

Curves = dict[str, list[tuple[float, float]]]  # system -> (compute in a unit, score) by rising step

LEFT, RIGHT, TOP, BOTTOM = 60, 560, 20, 270  # of the axes; the systems' names stand on the right
# Text and lines, in light and in dark mode: text 4.5 to 1 against the ground, as it is the systems' colour.
COLORS = {
    "light": ("#59636e", "#d5dade", ("#1c2126", "#8f5a00", "#0072b2", "#b34700", "#00734f")),
    "dark": ("#a7b1bb", "#39424b", ("#e6e9ec", "#e69f00", "#56b4e9", "#ff8a3d", "#2fc79a")),
}


def picture(curves: Curves, unit: str, scores_are: str, every: int = 5) -> str:
    """The curves as SVG, each with its system's name and last score. every: so many points a line."""
    most = max(curve[-1][0] for curve in curves.values())
    scores = [score for curve in curves.values() for _, score in curve]
    low, high = every * math.floor(min(scores) / every), every * math.ceil(max(scores) / every + 0.01)

    def x(compute: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * compute / most, 1)

    def y(score: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (score - low) / (high - low), 1)

    parts = []
    for score in range(low, high + 1, every):
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
    parts.append(f'<text x="{LEFT}" y="{TOP - 6}">{scores_are}</text>')
    label = float(TOP)
    for number, (system, curve) in sorted(enumerate(curves.items()), key=lambda item: -item[1][1][-1][1]):
        line = " ".join(f"{x(compute)},{y(score)}" for compute, score in curve)
        label = max(label, y(curve[-1][1]))
        parts.append(f'<polyline class="s{number}" points="{line}"/>')
        parts.append(f'<circle class="f{number}" cx="{x(curve[-1][0])}" cy="{y(curve[-1][1])}" r="4"/>')
        name, space, more = system.partition(" ")
        title = SYSTEMS[name].title + space + more if name in SYSTEMS else system
        parts.append(f'<text class="f{number}" x="{RIGHT + 16}" y="{label + 5}">{title} {curve[-1][1]:.1f}</text>')
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
