"""Self-generated replay: a decoder trains on its own text while a language is added.

Text drawn at temperature 1 has the model's own distribution, so training on it pulls the model back
to what it was: distillation without a teacher in memory or anyone's text (Huang et al., ACL 2024,
draw it from examples). The beginning of the chat template as the only prompt is Magpie's (Xu et
al., ICLR 2025). What a model imagines there is longer than what people ask, so half of a chat
model's text is its answers to questions as people write them (questions.txt). A small model writes
too little in the other languages that it knows, so given text in these is added; with `replay_kl`
its predictions there are kept, too.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, StoppingCriteriaList

from ds_minimodel.artifacts.base import config_of, module_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, atomic_write, write_manifest
from ds_minimodel.common.progress import Progress
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.store import write_shard
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import SAID, chat_prompt
from ds_minimodel.models import BodyConfig
from ds_minimodel.ops import gpu
from ds_minimodel.ops.precision import decoder_dtype
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer

ROWS = 64  # texts at once
MAX_ROWS = 1024  # on a GPU, where a token takes as long for few texts as for many
LENGTH = 224  # tokens of each, after a template's beginning
KNOWN = 0.5  # share of text in languages that the model knows, where that is given
ANSWERED = 0.5  # share of answers in what a chat model writes
# Folders below the store: what was drawn, in a file for each time of `rows` texts.
PARTS = "parts"
ANSWER_PARTS = "answers"
QUESTIONS = Path(__file__).with_name("questions.txt")  # one a line; none is one of evaluation's
_NOTHING = -1  # in a part, before a question that is shorter than others


def write_replay(
    base: str | Path,
    tokenizer_folder: Path,
    out: Path,
    tokens: int,
    seed: int = 1,
    known: Sequence[list[Path]] = (),
    sample_length: int = LENGTH,
) -> None:
    """Write at least `tokens` tokens that a base generates into the token store `out`.

    With a chat template that has a user's turn, texts are dialogues drawn from that turn on, and as
    many tokens are of QUESTIONS with what the base answers. Else texts are drawn from the start
    token on; each is cut off at LENGTH. They are drawn in parts, which are kept as they come: after
    an interruption, and for more tokens than before, it goes on from there.

    Args:
        base: folder or name of the model.
        out: folder of the store.
        tokens: to be generated.
        tokenizer_folder: of the base's vocabulary, with its chat template.
        seed: the same gives the same ids on a machine with the same versions.
        known: files of text for each further language that the model knows. Beginnings of their
            documents are then the share KNOWN of the tokens.
        sample_length: tokens of a sample, at which a question with its answer is cut off.

    Raises:
        UserError: where the chat template changes what a user says.
    """
    foreign = config_of(base)
    tokenizer = open_tokenizer(tokenizer_folder)
    vocabulary = tokenizer.vocabulary
    start, _ = vocabulary.bounds("self-generated replay")
    dialogue_opening = _opening(tokenizer_folder)
    opening = dialogue_opening or [start]
    length = min(LENGTH, foreign.config.max_positions - len(opening))
    if length < 1:
        raise UserError(
            f"{base}: its chat template begins with more than the "
            f"{foreign.config.max_positions} positions"
        )
    texts = [
        ids
        for files in known
        for ids in _begun(tokenizer, files, length, KNOWN * tokens / len(known))
    ]
    tokens = max(1, tokens - sum(map(len, texts)))
    writer = _Writer(base, vocabulary, seed)
    # A reader puts the first token before each text, so that a sample holds one token less.
    longest = min(sample_length, LENGTH, foreign.config.max_positions) - 1
    questions = _questions(tokenizer_folder, longest) if dialogue_opening else []
    answered = list[NDArray[np.int64]]()
    if questions:
        lengths = [len(ids) for ids in questions]
        answered = writer.write(
            questions,
            length=min(longest - min(lengths), foreign.config.max_positions - max(lengths)),
            tokens=round(ANSWERED * tokens),
            folder=out / ANSWER_PARTS,
        )
        tokens -= round(ANSWERED * tokens)
    parts = writer.write([opening], length, tokens, folder=out / PARTS)

    first = 1 if opening[0] == start else 0  # which a reader puts before a text itself
    with atomic_folder(out) as folder:
        for name in (PARTS, ANSWER_PARTS):
            if (out / name).exists():
                shutil.copytree(out / name, folder / name)
        with write_shard(folder, 0, vocabulary.size, tokenizer.sha256) as add:
            for part_RS in parts:
                texts_RS = part_RS[:, first:]
                add(texts_RS.ravel(), [texts_RS.shape[1]] * len(texts_RS))
            for part_RS in answered:
                for row_S in part_RS:
                    ids = row_S[row_S != _NOTHING][first : first + longest]
                    add(ids, [len(ids)])
            for ids in texts:
                add(ids, [len(ids)])
        facts = {"tokenizer_sha256": tokenizer.sha256, "shards": 1, "whole_documents": True}
        write_manifest(folder, kind="token_store", **vocabulary.facts(), **facts, seed=seed)


class _Writer:
    """A base that writes by its own distribution; it is loaded once something is missing."""

    def __init__(self, base: str | Path, vocabulary: Vocabulary, seed: int):
        self.base = base
        self.vocabulary = vocabulary
        self.seed = seed
        self.device = gpu.device()
        self.foreign = config_of(base)

    @cached_property
    def _module(self) -> Any:
        return module_of(self.base, decoder_dtype(self.device)).to(self.device)

    def write(
        self, prompts: Sequence[list[int]], length: int, tokens: int, folder: Path
    ) -> list[NDArray[np.int64]]:
        """Draw what is missing of so many tokens, and keep each part in a file of `folder`.

        Args:
            prompts: ids that stand before a text; each in turn.
            length: tokens that are drawn after them.
            tokens: that all parts have together.
            folder: of the parts.

        Returns:
            Ids of all parts, (texts, longest prompt + length) each, _NOTHING before a shorter
            prompt.
        """
        parts = [np.load(path) for path in sorted(folder.glob("*.npy"))]
        count = sum(len(part) for part in parts)
        if length * count >= tokens:
            return parts
        is_cuda = self.device.type == "cuda"
        width = max(map(len, prompts))
        rows = min(self._most_rows(width + length), -(-tokens // length))
        num_rows = self.foreign.hf_config.vocab_size
        pad = self.vocabulary.bounds("self-generated replay")[1]
        settings = self._module.generation_config  # which others who share the module go on with
        self._module.generation_config = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=length,
            pad_token_id=pad,
            # Rows that are no token's are never drawn.
            suppress_tokens=[*range(self.vocabulary.size, num_rows)] or None,
        )
        progress = Progress("self-generated replay", tokens, "tokens")

        def show(ids_RS: torch.Tensor, _: object) -> torch.Tensor:
            progress.update(min(tokens, count * length + rows * (ids_RS.shape[1] - width)))
            return ids_RS.new_zeros(rows, dtype=torch.bool)  # no text is to end here

        with torch.random.fork_rng([self.device] if is_cuda else []), torch.inference_mode():
            while count * length < tokens:
                chosen = [prompts[index % len(prompts)] for index in range(count, count + rows)]
                padded = [[_NOTHING] * (width - len(ids)) + ids for ids in chosen]
                ids_RO = torch.tensor(padded, device=self.device)
                is_prompt_RO = ids_RO != _NOTHING
                # A part is a function of the seed and its number, whatever came before it.
                torch.manual_seed(self.seed + (len(parts) << 32))
                drawn_RS = self._module.generate(
                    ids_RO.where(is_prompt_RO, pad),
                    attention_mask=is_prompt_RO.long(),
                    stopping_criteria=StoppingCriteriaList([show]),
                )
                drawn_RS[:, :width] = ids_RO
                parts.append(drawn_RS.cpu().numpy())
                with atomic_write(folder / f"{len(parts):05}.npy") as file:
                    np.save(file, parts[-1])
                count += rows
        progress.close()
        self._module.generation_config = settings
        return parts

    def _most_rows(self, positions: int) -> int:
        memory = 0
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
        return _rows_within(
            memory // 4, self.foreign.config, self.foreign.hf_config.vocab_size, positions
        )


def _questions(tokenizer_folder: Path, longest: int) -> list[list[int]]:
    """Return the ids of QUESTIONS by the chat template, up to where an answer begins.

    Those that leave an answer less than half of `longest` are left out.
    """
    tokenizer = tokenizer_of(tokenizer_folder)
    rows = list[list[int]]()
    for question in QUESTIONS.read_text("utf-8").splitlines():
        dialogue = chat_prompt(tokenizer, question, add_generation_prompt=True)
        if dialogue is None:
            return []
        ids = tokenizer(dialogue, add_special_tokens=False)["input_ids"]
        if len(ids) <= longest // 2:
            rows.append(ids)
    return rows


def _begun(
    tokenizer: Tokenizer, files: Sequence[Path], length: int, tokens: float
) -> Iterator[NDArray[np.int64]]:
    """Yield the first ids of documents, at most `length` of each and about `tokens` in all."""
    for document in read_documents(files):
        if tokens <= 0:
            return
        (ids,) = tokenizer.encode(["\n".join(document)])
        yield np.array(ids[:length], np.int64)
        tokens -= len(ids[:length])


def _rows_within(memory: int, config: BodyConfig, vocab_size: int, positions: int) -> int:
    """Return how many texts' keys, values and scores so many bytes hold.

    They are at least ROWS and at most MAX_ROWS.
    """
    keys_values = 2 * positions * config.num_layers * config.num_key_heads * config.head_width
    return min(max(ROWS, memory // (4 * keys_values + 16 * vocab_size)), MAX_ROWS)


def _opening(pack: Path) -> list[int]:
    """Return the ids that stand before what a user says first, by the chat template.

    There are none where no template takes a user's turn.
    """
    tokenizer = tokenizer_of(pack)
    dialogue = chat_prompt(tokenizer, SAID)
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
