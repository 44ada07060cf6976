"""What is won and lost where a part of the update is taken back after training: base + strength x
(trained - base).
"""

from collections.abc import Iterator
from pathlib import Path

from study.third.cells import read
from study.third.picture import picture
from study.third.results import Results, chats, table

results, CHATS = Results(), chats()
NAMED = {cell.name: cell for cell in results.groups()}
CURVES = {
    "de-lora-0.333-0.002-seed1-own-replay0.1-constant": "German",
    "el-lora-0.333-0.002-seed1-own-replay0.1-constant": "Greek",
    "tr-lora-0.333-0.002-seed1-own-replay0.1-constant": "Turkish",
    "de-lora-0.333-0.002-seed1-old-own-replay0.1": "German, its own tokens",
    "el-lora-0.333-0.004-seed2": "Greek, without replay",
}
Found = dict[tuple[str, float], dict[str, float]]


def found() -> Found:
    """{(cell, strength): bits per byte by text}, the whole update as results.jsonl has it."""
    rows: Found = {
        (row["cell"], row["strength"]): row["bits_per_byte"]
        for row in read(Path(__file__).with_name("results.jsonl"))
    }
    whole = {cell: results.rows[cell]["bits_per_byte"] for cell, _ in rows}
    return {(cell, 1.0): bits for cell, bits in whole.items()} | rows


def tables() -> Iterator[str]:
    columns = (
        "cell | strength | manual gained | of it kept | help | English, less | chats, bits lost | "
        "given back"
    )
    yield table(columns, rows())


def rows() -> Iterator[str]:
    bits = found()
    for (cell, strength), own in sorted(bits.items(), key=lambda one: (one[0][0], -one[0][1])):
        language = cell[:2]
        whole, text = bits[cell, 1.0], f"{language}.manual"
        gain, most = results.before[text] - own[text], results.before[text] - whole[text]
        lost, all_lost = CHATS[cell, strength], CHATS[cell, 1.0]
        english = results.before["en.manual"] - own["en.manual"]
        kept = (
            f"{gain:.3f} | {100 * gain / most:.0f} % | {own[f'{language}.help']:.3f} | "
            f"{english:+.3f}"
        )
        yield (
            f"`{cell}` | {strength:g} | {kept} | {lost:+.3f} | {100 * (1 - lost / all_lost):.0f} %"
        )


def drawing() -> str:
    bits = found()
    curves = {
        name: [
            (
                CHATS[cell, strength],
                results.before[f"{cell[:2]}.manual"] - bits[cell, strength][f"{cell[:2]}.manual"],
            )
            for strength in (0.5, 0.75, 1.0)
            if (cell, strength) in bits
        ]
        for cell, name in CURVES.items()
    }
    title = "Language gained against chats lost at strengths 0.5, 0.75 and 1"
    return picture(
        title,
        "bits per token lost of the untouched model's chats",
        "bits per byte of the manual gained",
        curves,
    )
