"""Models in one GGUF file, as llama.cpp has them, made into a folder of Hugging Face's by transformers' own reader."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.hf.card import CARD

_MAGIC = b"GGUF"
_PACKAGES = "gguf", "accelerate"  # that transformers reads it with


def write_folder(file: str | Path, folder: str | Path) -> None:
    """Write the model of a GGUF file into `folder`, its weights dequantised to fp32; UserError where it is none."""
    file = Path(file)
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{file}: a GGUF file is read with the package {name}; pip install 'ds_minimodel[gguf]'")
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise UserError(f"{file}: not a GGUF file; download it again")
    from_file = {"gguf_file": file.name, "local_files_only": True}
    with one_line(file, "transformers cannot read it"):
        config = AutoConfig.from_pretrained(file.parent, **from_file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **from_file)
        tensors = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **from_file).state_dict()
        config.__dict__.pop("quantization_config", None)  # with it transformers writes nothing
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(tensors)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        licence = importlib.import_module("gguf").GGUFReader(file).get_field("general.license")
    if licence is not None:
        (Path(folder) / CARD).write_text(f"---\nlicense: {json.dumps(licence.contents())}\n---\n")
