"""How far a model has gone from what it was, by dialogues that the untouched one has written and by its answers.

    python study/third/chats.py FOLDER [WORD…]

FOLDER is that of cells.py; FOLDER/probe is a base whose rehearsal was drawn by another seed than what trains. Adds to
FOLDER/chats.jsonl of "untouched" and each cell of results.jsonl with seed 1, with words of those that have one in their
names, where it is not there: bits a token that was drawn in those dialogues (the untouched model has the least that
one can have) and the likeliest answers to some questions.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from ds_minimodel.api import TokenStore, export_hf
from ds_minimodel.hf.rehearsal import LENGTH
from ds_minimodel.hf.samples import samples

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "What is two plus three?",
    "Write one sentence about the sea.",
    "Who wrote Romeo and Juliet?",
    "What do bees make?",
)


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[1]) / "chats.jsonl"
    done = {json.loads(line)["cell"] for line in out.read_text("utf-8").splitlines()} if out.exists() else set()
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text("utf-8").splitlines()]
    cells = [row["cell"] for row in rows if row.get("seed") == 1]
    for cell in ["untouched", *cells]:
        if cell in done or not any(word in cell for word in ("untouched", *(sys.argv[2:] or [""]))):
            continue
        with exported(folder, cell) as model:
            if model is None:
                continue
            found = samples(model, [], QUESTIONS).answers
            row = {"cell": cell, "bits_per_token": bits(model, folder / "probe/rehearsal"), "answers": dict(found)}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


@contextmanager
def exported(folder: Path, cell: str) -> Iterator[Path | None]:
    """The model of a cell as transformers reads it; None where the cell was made on another machine."""
    pack = next((folder / "cells" / cell / "adapt").glob("*/*/pack"), None)
    if cell != "untouched" and pack is None:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        export_hf(folder / "base/body", Path(temporary) / "model", pack)
        yield Path(temporary) / "model"


@torch.inference_mode()
def bits(model: Path, dialogues: Path) -> float:
    store = TokenStore(dialogues)
    module = AutoModelForCausalLM.from_pretrained(model).eval()
    losses = []
    for number in range(store.num_documents):
        ids_1S = torch.tensor(store.read(*store.document(number)).astype("int64"))[None]
        logits_SV = module(ids_1S).logits[0, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits_SV, ids_1S[0, 1:], reduction="none")[-LENGTH:])
    return float(torch.cat(losses).mean()) / math.log(2)


if __name__ == "__main__":
    main()
