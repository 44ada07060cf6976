"""Vocabularies of other sizes, and one in place of the model's own: Greek, 33 % of the compute."""

from collections.abc import Iterator

from study.third.picture import picture
from study.third.results import TEXTS, Results, cell_of, table

results = Results()
VOCABULARIES: dict[str, dict] = {
    "2,000 beside the old ones (`fertility`)": {},
    "16,000 beside them": {"pieces": 16000},
    "8,000 in their place": {"pieces": 8000, "vocabulary": "replace"},
}
NAMES = {"lora": "LoRA", "bl_base": "embeddings alone"}


def tables() -> Iterator[str]:
    yield table(
        "new tokens | what trains | bytes per token | manual | help | English | manual, better "
        "than with 2,000 by",
        rows(),
    )


def rows() -> Iterator[str]:
    for name, differs in VOCABULARIES.items():
        for system, said in NAMES.items():
            cell = cell_of("el", system, **differs)
            bits = " | ".join(f"{results.bits(cell, text):.3f}" for text in TEXTS)
            length = results.rows[cell.name]["bytes_per_token"]["el.manual"]
            change = results.less(cell, cell_of("el", system)) if differs else ""
            yield f"{name} | {said} | {length:.2f} | {bits} | {change}"


def drawing() -> str:
    curves = {
        said: [
            (
                float(number),
                results.before["el.manual"] - results.bits(cell_of("el", system, **differs)),
            )
            for number, differs in enumerate(VOCABULARIES.values(), start=1)
        ]
        for system, said in NAMES.items()
    }
    title = "Greek gained with each vocabulary"
    return picture(
        title,
        "1: 2,000 new tokens, 2: 16,000, 3: 8,000 in place of all",
        "bits per byte of the manual gained",
        curves,
    )
