"""Curves as SVG that follows the reader's light or dark mode."""

import math

Curves = dict[str, list[tuple[float, float]]]  # name -> points in the order of their line

LEFT, RIGHT, TOP, BOTTOM = 70, 540, 30, 280  # of the axes; the curves' names stand on the right
SPACE = 19  # between names of curves that end alike
# Text and lines, in light and in dark mode: text 4.5 to 1 against the ground, as it is the curves'
# colour.
COLORS = {
    "light": ("#59636e", "#d5dade", ("#1c2126", "#8f5a00", "#0072b2", "#b34700", "#00734f")),
    "dark": ("#a7b1bb", "#39424b", ("#e6e9ec", "#e69f00", "#56b4e9", "#ff8a3d", "#2fc79a")),
}


def picture(title: str, x_is: str, y_is: str, curves: Curves) -> str:
    """At most five curves, each with a mark at every point and its name beside its last one."""
    points = [point for curve in curves.values() for point in curve]
    (x_ticks, x), (y_ticks, y) = (
        _axis([point[of] for point in points], *ends)
        for of, ends in enumerate(((LEFT, RIGHT), (BOTTOM, TOP)))
    )
    parts = [f'<text x="{LEFT}" y="{TOP - 12}">{y_is}</text>']
    parts.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 44}" text-anchor="middle">{x_is}</text>'
    )
    for tick in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick)} H{RIGHT}"/>')
        parts.append(
            f'<text class="quiet" x="{LEFT - 8}" y="{y(tick) + 5}" '
            f'text-anchor="end">{tick:g}</text>'
        )
    for tick in x_ticks:
        parts.append(
            f'<text class="quiet" x="{x(tick)}" y="{BOTTOM + 20}" '
            f'text-anchor="middle">{tick:g}</text>'
        )
    label = float(TOP)
    for number, (name, curve) in sorted(
        enumerate(curves.items()), key=lambda one: -one[1][1][-1][1]
    ):
        label = max(label, y(curve[-1][1]))
        line = " ".join(f"{x(one)},{y(other)}" for one, other in curve)
        parts.append(f'<polyline class="s{number}" points="{line}"/>')
        parts += [
            f'<circle class="f{number}" cx="{x(one)}" cy="{y(other)}" r="4"/>'
            for one, other in curve
        ]
        parts.append(f'<text class="f{number}" x="{RIGHT + 14}" y="{label + 5}">{name}</text>')
        label += SPACE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {BOTTOM + 60}" role="img" '
        'aria-labelledby="t">\n'
        f'<title id="t">{title}</title>\n<style>\n'
        'text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }\n'
        f"polyline {{ fill: none; stroke-width: 2.2; }}\n{_colors('light')}\n"
        f"@media (prefers-color-scheme: dark) {{\n{_colors('dark')}\n}}\n</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _axis(values: list[float], start: float, end: float):  # type: ignore[no-untyped-def]
    """(ticks at 1, 2 or 5 times a power of ten, what gives a value's place between start and
    end).
    """
    low, high = min(values), max(values)
    if low <= high - low:  # else the values lie far from zero
        low = min(low, 0.0)
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(power * times for times in (1, 2, 5, 10) if (high - low) / (power * times) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(number * step, 10) for number in range(first, last + 1)]
    return ticks, lambda value: round(
        start + (end - start) * (value - ticks[0]) / (ticks[-1] - ticks[0]), 1
    )


def _colors(mode: str) -> str:
    quiet, grid, curves = COLORS[mode]
    rules = [
        f"text {{ fill: {curves[0]}; }}",
        f".quiet {{ fill: {quiet}; }}",
        f".grid {{ stroke: {grid}; }}",
    ]
    rules += [
        f".s{number} {{ stroke: {color}; }} .f{number} {{ fill: {color}; }}"
        for number, color in enumerate(curves)
    ]
    return "\n".join(rules)
