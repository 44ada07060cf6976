"""Compare two decoders, or one and its PEFT adapter: what was lost and what was won."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.artifacts.base import keep_vocabulary, module_of
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.extras import import_extra
from ds_minimodel.config.base import read_base
from ds_minimodel.evaluation.bits import beginning_of
from ds_minimodel.evaluation.comparison import (
    QUESTIONS,
    Comparison,
    Look,
    Probe,
    Prompt,
    compare,
)
from ds_minimodel.evaluation.questions import question_set
from ds_minimodel.evaluation.retention import Decoder, look
from ds_minimodel.hf.source import ADAPTER_CONFIG, VOCABULARIES, tokenizer_of
from ds_minimodel.ops import gpu
from ds_minimodel.ops.precision import decoder_dtype
from ds_minimodel.pipeline.steps.corpus import TEST_BYTES


def compare_models(
    base: str | Path,
    other: str | Path,
    texts: Mapping[str, str | Path] | None = None,
    source: str = "en",
) -> Comparison:
    """Ask two decoders the same questions, and score the same texts by both.

    Args:
        base: a folder of transformers, a GGUF file or a name on the Hub.
        other: the same, or a folder of a PEFT adapter of the base.
        texts: files of documents by what they are called; the beginning of each is scored.
        source: language of the questions.

    Raises:
        UserError: for what is no decoder, or cannot be read.
    """
    for model in (base, other):
        if not _is_adapter(model) and not read_base(str(model)).config.causal:
            raise UserError(f"{model}: predicts no next tokens; compare takes decoders")
    code, frame, questions = question_set(source)
    prompts = [Prompt(QUESTIONS, question.text, question.text, question) for question in questions]
    documents = {name: beginning_of([file], TEST_BYTES) for name, file in (texts or {}).items()}
    probe = Probe(code, frame, prompts, documents)
    before = _look_at(base, base, probe)
    after = _look_at(other, base, probe)
    return compare(before, after, probe)


def _look_at(model: str | Path, base: str | Path, probe: Probe) -> Look:
    """Look at a model, or at an adapter of a base."""
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = Path(scratch) / "tokenizer"
        if _is_adapter(model):
            module = _merged(Path(model), base, vocabulary)
        else:
            module = module_of(model, decoder_dtype(gpu.device()))
            keep_vocabulary(model, vocabulary)
        return look(Decoder(module.eval().to(gpu.device()), vocabulary), probe)


def _merged(adapter: Path, base: str | Path, vocabulary: Path) -> Any:
    """Return transformers' module of a base with an adapter merged, and write its vocabulary."""
    module = module_of(base, decoder_dtype(gpu.device()))
    peft = import_extra("peft", "peft")
    # An adapter with new tokens has a tokenizer of its own.
    if any((adapter / name).is_file() for name in VOCABULARIES):
        tokenizer = tokenizer_of(adapter)
        module.resize_token_embeddings(max(len(tokenizer), module.config.vocab_size))
        # The vocabulary is read from a folder that has the tokenizer beside the configuration.
        scratch = vocabulary.parent
        tokenizer.save_pretrained(scratch)
        module.config.save_pretrained(scratch)
        module.generation_config.save_pretrained(scratch)
        keep_vocabulary(scratch, vocabulary)
    else:
        keep_vocabulary(base, vocabulary)
    with one_line(adapter, f"it is no adapter of {base}"):
        return peft.PeftModel.from_pretrained(module, adapter).merge_and_unload()


def _is_adapter(model: str | Path) -> bool:
    return (Path(model) / ADAPTER_CONFIG).is_file()
