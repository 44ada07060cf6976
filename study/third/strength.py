"""What is won and lost where a part of what the body has learned is taken back.

    python study/third/strength.py FOLDER CELL STRENGTH…

FOLDER is that of cells.py, CELL has its pack there. The weights of the body become base + strength × (trained - base),
as in WiSE-FT (Wortsman et al., CVPR 2022); rows of pieces stay as they were trained. Adds to FOLDER/strength.jsonl what
is missing there: bits a byte of cells.py's texts, bits a token and answers of chats.py.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from chats import QUESTIONS, add, bits, read
from transformers import AutoModelForCausalLM

from ds_minimodel.api import bits_per_byte, export_hf, import_model
from ds_minimodel.hf.samples import samples


@torch.no_grad()
def weaken(model: Path, untouched: Path, strength: float, out: Path) -> None:
    """Copy a folder of transformers' with that share of its body's way from the untouched one."""
    trained, base = (AutoModelForCausalLM.from_pretrained(place) for place in (model, untouched))
    weights = dict(base.named_parameters())
    for name, weight in trained.named_parameters():
        if weight.shape == weights[name].shape:  # not the table of pieces
            weight.copy_(torch.lerp(weights[name], weight, strength))
    shutil.copytree(model, out)
    trained.save_pretrained(out)


def main() -> None:
    folder, cell, strengths = Path(sys.argv[1]), sys.argv[2], [float(text) for text in sys.argv[3:]]
    out, body, language = folder / "strength.jsonl", folder / "base/body", cell[:2]
    done = {(row["cell"], row["strength"]) for row in read(out)} if out.exists() else set()
    (pack,) = (folder / "cells" / cell / "adapt").glob("*/*/pack")
    texts = f"{language}.manual", f"{language}.help", "en.manual"
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        untouched, trained = Path(temporary) / "untouched", Path(temporary) / "trained"
        export_hf(body, untouched)
        export_hf(body, trained, pack)
        for strength in strengths:
            if (cell, strength) in done:
                continue
            model, base = Path(temporary) / f"{strength}", Path(temporary) / f"{strength}-base"
            weaken(trained, untouched, strength, model)
            import_model(model, base, "en")
            files = [str(folder / f"{text}.txt") for text in texts]
            found = bits_per_byte(base / "body", {"pack": base / "pack"}, files, precision="auto")
            row: dict[str, Any] = {"cell": cell, "strength": strength}
            row |= {"bits_per_byte": {text: score.bits_per_byte for text, score in zip(texts, found, strict=True)}}
            row |= {"bits_per_token": bits(model, folder / "probe/rehearsal")}
            row |= {"answers": dict(samples(model, [], QUESTIONS).answers)}
            add([row], out)


if __name__ == "__main__":
    main()
