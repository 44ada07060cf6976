"""Draw README's bars: bits per byte before and after (study/fourth), and a LoRA step beside
PEFT's.

python scripts/bars.py
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/pictures/before_and_after.svg"
RUNS = ROOT / "study/fourth/english.jsonl"
BESIDE_PEFT = {
    "thousand tokens a second": (118.634, 172.290),
    "GiB of memory": (44.8, 18.7),
}  # CONTRIBUTING.md, H200
# Of the longest bar; of labels; of a bar
WIDTH = 300
LEFT = 190
HEIGHT = 22
STYLE = """text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1c2126; }
.title { font-weight: 600; } .old { fill: #8a939c; } .new { fill: #0b5cad; }
@media (prefers-color-scheme: dark) { text { fill: #e6e9ec; } \
.old { fill: #a7b1bb; } .new { fill: #56b4e9; } }"""


def group(
    y: int, label: str, values: tuple[float, float], names: tuple[str, str], most: float
) -> str:
    """Two bars below each other, the old one first."""
    parts = [f'<text x="0" y="{y + HEIGHT + 5}">{label}</text>']
    for place, (value, name, kind) in enumerate(zip(values, names, ("old", "new"), strict=True)):
        top = y + place * (HEIGHT + 3)
        length = round(WIDTH * value / most, 1)
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length}" height="{HEIGHT}" rx="2"/>'
        )
        parts.append(f'<text x="{LEFT + length + 8}" y="{top + 16}">{value:.4g} {name}</text>')
    return "\n".join(parts)


def picture() -> str:
    """The whole picture as SVG that follows the reader's light or dark mode."""
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    bits = {(row["language"], row["arm"]): row["bits"] for row in map(json.loads, lines)}
    before = bits["", "untouched"]
    after = bits["de", "answers"]
    german = (before["de"], after["de"])
    english = (before["en"], after["en"])
    parts = [
        '<text class="title" x="0" y="18">Bits per byte of held-out text (lower is better)</text>'
    ]
    parts += [group(32, "German", german, ("before", "after"), max(german))]
    parts += [group(92, "English", english, ("before", "after"), max(german))]
    parts += ['<text class="title" x="0" y="176">A LoRA step of this size on one H200</text>']
    for place, (label, values) in enumerate(BESIDE_PEFT.items()):
        parts += [group(190 + 60 * place, label, values, ("PEFT", "ds_minimodel"), max(values))]
    title = "Bits per byte before and after German was added, and a LoRA step beside PEFT's"
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 670 310" role="img" '
        'aria-labelledby="t">'
    )
    return "\n".join(
        [head, f'<title id="t">{title}</title>', f"<style>\n{STYLE}\n</style>", *parts, "</svg>\n"]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
