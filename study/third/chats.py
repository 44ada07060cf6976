"""How far a model has gone from what it was, by dialogues that the untouched one has written and by
its answers.

    python -m study.third.chats FOLDER probe
    python -m study.third.chats FOLDER [WORD…]

FOLDER is that of cells.py. The first writes FOLDER/probe: dialogues by another seed than what
trains. The second adds to FOLDER/chats.jsonl of "untouched" and each cell of results.jsonl with
seed 1, with words of those of any seed that have one in their names, where it is not there: bits a
token that was drawn in those dialogues (the untouched model has the least that one can have) and
the likeliest answers to some questions.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ds_minimodel.api import TokenStore, export_hf
from ds_minimodel.artifacts.base import module_of
from ds_minimodel.extend.generations import TOKENS, settings_of, written
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import asked
from ds_minimodel.ops.gpu import device
from ds_minimodel.pipeline.own_replay import LENGTH, write_replay
from study.third.cells import read

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "What is two plus three?",
    "Write one sentence about the sea.",
    "Who wrote Romeo and Juliet?",
    "What do bees make?",
)


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    if words == ["probe"]:
        return write_replay(folder / "base.gguf", folder / "base", folder / "probe", 14_000, seed=2)
    cells = [
        row["cell"]
        for row in read(folder / "results.jsonl")
        if "seed" in row and (words or row["seed"] == 1)
    ]
    for cell, model in models(folder, cells, words, folder / "chats.jsonl"):
        row = {
            "cell": cell,
            "bits_per_token": bits(model, folder / "probe"),
            "answers": answered(model, QUESTIONS),
        }
        add([row], folder / "chats.jsonl")


def answered(model: Path, questions: Sequence[str]) -> dict[str, str]:
    """The likeliest answers of a model in a folder."""
    tokenizer, module = tokenizer_of(model), module_of(str(model)).to(device())
    dialogues = [
        asked(tokenizer, question, add_generation_prompt=True) or question for question in questions
    ]
    prompts = [tokenizer(dialogue, add_special_tokens=False)["input_ids"] for dialogue in dialogues]
    ids = written(module, prompts, settings_of(module), TOKENS)
    return {
        question: tokenizer.decode(own, skip_special_tokens=True)
        for question, own in zip(questions, ids, strict=True)
    }


def models(
    folder: Path, cells: Sequence[str], words: Sequence[str], out: Path
) -> Iterator[tuple[str, Path]]:
    """("untouched" or a cell that `out` lacks, its model as transformers reads it).

    words: those cells alone whose names have one. A cell that was made on another machine is left
    out.
    """
    done = {row["cell"] for row in read(out)} if out.exists() else set()
    for cell in ["untouched", *cells]:
        pack = next((folder / "cells" / cell / "adapt").glob("*/*/pack"), None)
        is_asked = cell == "untouched" or (pack and any(word in cell for word in words or [""]))
        if cell not in done and is_asked:
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                export_hf(folder / "base", Path(temporary) / "model", pack)
                yield cell, Path(temporary) / "model"


def add(rows: Iterable[dict[str, Any]], out: Path) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@torch.inference_mode()
def bits(model: Path, dialogues: Path) -> float:
    store = TokenStore(dialogues)
    module = AutoModelForCausalLM.from_pretrained(model).eval()
    losses = []
    for number in range(store.num_documents):
        ids_1S = torch.tensor(store.read(*store.document(number)).astype("int64"))[None]
        logits_SV = module(ids_1S).logits[0, :-1].float()
        losses.append(
            torch.nn.functional.cross_entropy(logits_SV, ids_1S[0, 1:], reduction="none")[-LENGTH:]
        )
    return float(torch.cat(losses).mean()) / math.log(2)


if __name__ == "__main__":
    main()
