"""What is won and lost where a part of what the body has learned is taken back.

    python -m study.third.strength.measure FOLDER [WORD…]

FOLDER is that of cells.py, with packs; with words those alone whose names have one. The weights of
the body become base + strength × (trained - base), as in WiSE-FT (Wortsman et al., CVPR 2022); rows
of pieces stay as they were trained. Adds to FOLDER/strength.jsonl what is missing there: bits a
byte of cells.py's texts, bits a token and answers of chats.py.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ds_minimodel.api import bits_per_byte, export_hf
from study.third.cells import read
from study.third.chats import QUESTIONS, add, answered, bits

CELLS = {  # strengths of each, by the amendments of registration.md
    "de-lora-0.333-0.002-seed1-own-replay0.1-constant": (1.0, 0.75, 0.5),
    "de-lora-0.333-0.002-seed1-old-own-replay0.1": (1.0, 0.75, 0.5),
    "tr-lora-0.333-0.002-seed2-own-replay0.1": (1.0, 0.75, 0.5),
    "el-lora-0.333-0.004-seed2": (1.0, 0.75),
    "el-lora-0.333-0.002-seed1-own-replay0.1": (0.75, 0.5),
    "de-lora-0.333-0.002-seed1": (0.75, 0.5),
    "el-lora-0.333-0.002-seed1-own-replay0.1-constant": (1.0, 0.75, 0.5),
    "tr-lora-0.333-0.002-seed1-own-replay0.1-constant": (1.0, 0.75, 0.5),
    "el-lora-0.333-0.004-seed1-own-replay0.1": (1.0, 0.75, 0.5),
    "de-lora-0.333-0.004-seed1-own-replay0.1": (1.0, 0.75, 0.5),
}


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:] or [""]
    out = folder / "strength.jsonl"
    done = {(row["cell"], row["strength"]) for row in read(out)} if out.exists() else set()
    for cell, strengths in CELLS.items():
        pack = next(
            (folder / "cells" / cell / "adapt").glob("*/*/pack"), None
        )  # none where another machine made it
        wanted = [strength for strength in strengths if (cell, strength) not in done]
        if pack and wanted and any(word in cell for word in words):
            add(rows(folder, cell, pack, wanted), out)


def rows(folder: Path, cell: str, pack: Path, strengths: list[float]) -> Iterator[dict[str, Any]]:
    body, language = folder / "base", cell[:2]
    texts = f"{language}.manual", f"{language}.help", "en.manual"
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for strength in strengths:
            model = Path(temporary) / f"{strength}"
            export_hf(body, model, pack, strength=strength)
            files = [folder / f"{text}.txt" for text in texts]
            found = bits_per_byte(body, {"pack": pack}, files, precision="auto", strength=strength)
            yield {
                "cell": cell,
                "strength": strength,
                "bits_per_byte": {
                    text: score.bits_per_byte for text, score in zip(texts, found, strict=True)
                },
                "bits_per_token": bits(model, folder / "probe"),
                "answers": answered(model, QUESTIONS),
            }


if __name__ == "__main__":
    main()
