"""Self-generated replay: text that a decoder draws from itself, and trains on while a language is
added.

Text drawn at temperature 1 has the model's own distribution, so training on it pulls the model back
to what it was: distillation without a teacher in memory or anyone's text (Huang et al., ACL 2024,
draw it from examples). The beginning of the chat template as the only prompt is Magpie's (Xu et
al., ICLR 2025). A small model writes too little in the other languages that it knows, so given text
in these is added; with `replay_kl` its predictions there are kept, too.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, StoppingCriteriaList

from ds_minimodel.artifacts.base import config_of, module_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.common.progress import Progress
from ds_minimodel.data.store import write_shard
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import SAID, asked
from ds_minimodel.models import BodyConfig
from ds_minimodel.ops import gpu
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer

ROWS, MOST_ROWS = (
    64,
    1024,
)  # texts at once, and on a GPU, where a token takes as long for few as for many
LENGTH = 224  # tokens of each, after a template's beginning
KNOWN = 0.5  # share of text in languages that the model knows, where that is given


def write_replay(
    base: str | Path,
    tokenizer_folder: Path,
    out: Path,
    tokens: int,
    seed: int = 1,
    known: Sequence[list[Path]] = (),
) -> None:
    """Write at least `tokens` tokens that a base generates into the token store `out`.

    tokenizer_folder: of its vocabulary, with its chat template. With a template that has a user's
    turn, texts are dialogues drawn from that turn on, else texts drawn from the start token on;
    each is cut off at LENGTH. known: files of text for each further language that the model knows;
    beginnings of their documents are then the share KNOWN of the tokens. The same seed gives the
    same ids on a machine with the same versions. UserError where the chat template changes what a
    user says.
    """
    foreign = config_of(base)
    config, rows_of_base = foreign.config, foreign.theirs.vocab_size
    device, tokenizer = gpu.device(), open_tokenizer(tokenizer_folder)
    vocabulary = tokenizer.vocabulary
    start, eos = vocabulary.bounds("self-generated replay")
    opening = _opening(tokenizer_folder) or [start]
    length = min(LENGTH, config.max_positions - len(opening))
    if length < 1:
        raise UserError(
            f"{base}: its chat template begins with more than the {config.max_positions} positions"
        )
    texts = [
        ids
        for text in known
        for ids in _begun(tokenizer, text, length, KNOWN * tokens / len(known))
    ]
    tokens = max(1, tokens - sum(map(len, texts)))
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    rows = min(
        _rows_within(memory // 4, config, rows_of_base, len(opening) + length), -(-tokens // length)
    )
    batches, done = -(-tokens // (rows * length)), 0
    with atomic_folder(out) as folder:
        wide = (
            resolve_precision("auto", device) == "bf16"
        )  # fp16 has too few numbers for some models
        model = module_of(base, torch.bfloat16 if wide else torch.float32).to(device)
        past = range(vocabulary.size, rows_of_base)  # rows that are no token's
        settings = model.generation_config
        model.generation_config = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=length,
            pad_token_id=eos,
            suppress_tokens=[*past] or None,
        )
        ids_RO = torch.tensor([opening] * rows, device=device)
        progress = Progress("self-generated replay", batches * rows * length, "tokens")

        def show(ids_RS: torch.Tensor, _: object) -> torch.Tensor:
            progress.update(done + rows * (ids_RS.shape[1] - len(opening)))
            return ids_RS.new_zeros(rows, dtype=torch.bool)  # none is to end here

        seeded = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with (
            write_shard(folder, 0, vocabulary.size, tokenizer.sha256) as add,
            seeded,
            torch.inference_mode(),
        ):
            torch.manual_seed(seed)
            for _ in range(batches):
                steps = StoppingCriteriaList([show])
                found_RS = model.generate(
                    ids_RO, attention_mask=torch.ones_like(ids_RO), stopping_criteria=steps
                )
                found_RS = found_RS.cpu().numpy()
                texts_RS = found_RS[
                    :, opening[0] == start :
                ]  # which a reader puts before a text itself
                add(texts_RS.ravel(), [texts_RS.shape[1]] * rows)
                done += rows * length
            for ids in texts:
                add(ids, [len(ids)])
        progress.close()
        model.generation_config = settings
        facts = {"tokenizer_sha256": tokenizer.sha256, "shards": 1, "whole_documents": True}
        write_manifest(folder, kind="token_store", **vocabulary.facts(), **facts, seed=seed)


def _begun(
    tokenizer: Tokenizer, files: Sequence[Path], length: int, tokens: float
) -> Iterator[NDArray[np.int64]]:
    """The first ids of documents, at most `length` of each, until `tokens` in all are reached or
    the text ends.
    """
    for document in read_documents(files):
        if tokens <= 0:
            return
        (ids,) = tokenizer.encode(["\n".join(document)])
        yield np.array(ids[:length], np.int64)
        tokens -= len(ids[:length])


def _rows_within(memory: int, config: BodyConfig, vocab_size: int, positions: int) -> int:
    """How many texts' keys, values and scores so many bytes hold: ROWS at least, MOST_ROWS at
    most.
    """
    keys_values = 2 * positions * config.num_layers * config.num_key_heads * config.head_width
    return min(max(ROWS, memory // (4 * keys_values + 16 * vocab_size)), MOST_ROWS)


def _opening(pack: Path) -> list[int]:
    """Ids that stand before what a user says first, by the chat template; none where no template
    takes that.
    """
    tokenizer = tokenizer_of(pack)
    dialogue = asked(tokenizer, SAID)
    if dialogue is None:
        return []
    if dialogue.count(SAID) != 1:
        raise UserError(
            f"{pack}: its chat template changes what a user says, so nothing is drawn in the "
            "user's place"
        )
    ids: list[int] = tokenizer(dialogue.partition(SAID)[0].rstrip(" "), add_special_tokens=False)[
        "input_ids"
    ]
    return ids
