"""LoRA over the model's own tokens beside LoRA with new ones, at equal compute: H3a and H3b of
registration.md.
"""

from collections.abc import Iterator
from dataclasses import replace

from study.third.cells import Cell
from study.third.picture import picture
from study.third.results import LANGUAGES, REPLAY, TEXTS, Results, cell_of, percent, table

results = Results()
PAIRS = [cell_of(language, "lora", old=True) for language in LANGUAGES]
PAIRS += [
    cell_of("de", "lora", 1.0, old=True),
    *(cell_of(language, "lora", old=True, **REPLAY) for language in ("de", "tr")),
]
REGISTERED = PAIRS[:3]


def tables() -> Iterator[str]:
    yield table("claim as registered, seed 1 | German | Greek | Turkish", verdicts())
    yield table(
        "language | compute | replay | own tokens: manual, help, English | manual, better by | "
        "help | English",
        rows(),
    )


def verdicts() -> Iterator[str]:
    for name, text in (
        ("H3a: new tokens are better, bits", "manual"),
        ("H3b: they lose less English, bits", "en.manual"),
    ):
        told = []
        for old in REGISTERED:
            bits = results.each(old, text)[1] - results.each(replace(old, old=False), text)[1]
            counts = abs(bits) > results.margin(text)
            verdict = "confirmed" if bits > 0 else "refuted"
            told.append(f"{bits:+.3f}: {verdict}{'' if counts else '; level by sigma'}")
        yield f"{name} | {' | '.join(told)}"


def rows() -> Iterator[str]:
    for old in PAIRS:
        own = ", ".join(f"{results.bits(old, text):.3f}" for text in TEXTS)
        differ = " | ".join(results.less(old, replace(old, old=False), text) for text in TEXTS)
        yield (
            f"{LANGUAGES[old.language]} | {percent(old.share)} | {'yes' if old.own else 'no'} | "
            f"{own} | {differ}"
        )


def drawing() -> str:
    def point(cell: Cell) -> tuple[float, float]:
        before = results.before["en.manual"], results.before[f"{cell.language}.manual"]
        return results.bits(cell, "en.manual") - before[0], before[1] - results.bits(cell)

    curves = {
        f"{LANGUAGES[old.language]}{', replay' * old.own}": [
            point(old),
            point(replace(old, old=False)),
        ]
        for old in PAIRS
        if old.share < 1
    }
    title = "Language gained against English lost, from the model's own tokens to new ones"
    return picture(
        title,
        "bits per byte of English lost",
        "bits of the manual gained: own tokens, then new ones",
        curves,
    )
