"""Bits per byte of texts, one measure for bodies with packs and for decoders of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel.artifacts.adaptation import plug
from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import paths_of
from ds_minimodel.evaluation.batches import Scorer, outputs
from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES, Documents, Text, TextConfig
from ds_minimodel.evaluation.packs import open_pack
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import TokenLikelihoods, load_into, materialise
from ds_minimodel.ops import gpu
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.text.reader import COLUMN, read_documents
from ds_minimodel.tokenizers.tokenizer import Tokenizer

MAX_LOGITS = 25_000_000  # of a decoder of transformers, in memory at once


class TextScore(NamedTuple):
    """Bits per byte of a text, and the bytes of a token; an unknown byte counts as a token."""

    bits_per_byte: float
    bytes_per_token: float


class Bits(NamedTuple):
    """Score of a text with a pack."""

    pack: str
    text: str
    bits_per_byte: float
    bytes_per_token: float


class DecoderLikelihoods(nn.Module):
    """Likelihoods of tokens by a decoder of transformers.

    TokenLikelihoods has those by a body of this package.
    """

    def __init__(self, decoder: Any):
        super().__init__()
        self.decoder = decoder

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the logarithm of each token's probability, (B, S) fp32; 0 for a row's first.

        What fills a row up changes nothing before it, since the model is causal.
        """
        tokens_BS = batch["tokens"]
        size = tokens_BS.shape[1] * self.decoder.get_output_embeddings().weight.shape[0]
        parts: list[Tensor] = []
        for ids_BS in tokens_BS.split(max(1, MAX_LOGITS // size)):
            logits_BSV = self.decoder(ids_BS, use_cache=False).logits[:, :-1].float()
            found_BS1 = logits_BSV.log_softmax(-1).gather(-1, ids_BS[:, 1:, None])
            parts.append(F.pad(found_BS1[..., 0], (1, 0)))
        return torch.cat(parts)


def score_text(
    module: Scorer,
    tokenizer: Tokenizer,
    documents: Documents,
    max_length: int,
    context_bytes: int = CONTEXT_BYTES,
) -> TextScore:
    """Score documents by a module that says how likely their tokens are.

    Args:
        module: Gives the logarithms of tokens' probabilities.
        tokenizer: Its vocabulary.
        documents: The text.
        max_length: Most tokens of a sequence.
        context_bytes: Most bytes before a token from which it is predicted. Vocabularies compare at
            equal bytes, not at equal tokens.
    """
    kind = Text()
    task = TextConfig(kind="bits-per-byte", test={}, context_bytes=context_bytes)
    encoded = kind.encode(tokenizer, documents, task, max_length=max_length)
    scores = kind.score(
        task,
        language="",
        records=documents,
        encoded=encoded,
        logits=outputs(module, encoded.examples),
    )
    tokens = int((encoded.examples.lengths - 1).sum()) + sum(encoded.unknown)
    return TextScore(scores["bits_per_byte"], documents.num_bytes / max(1, tokens))


def beginning_of(patterns: Iterable[str | Path], max_bytes: int, column: str = COLUMN) -> Documents:
    """Read the first documents of a text, at most `max_bytes` of it, the last one cut off."""
    texts: list[str] = []
    left = max_bytes
    for document in read_documents(patterns, column):
        text = "\n".join(document).encode()[:left].decode(errors="ignore")
        if text.strip():
            texts.append(text)
        left -= len(text.encode())
        if left <= 0:
            break
    return Documents(texts)


def bits_per_byte(
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    texts: Sequence[str | Path],
    context_bytes: int = CONTEXT_BYTES,
    precision: str | None = None,
    strength: float = 1.0,
) -> list[Bits]:
    """Score each text with each pack.

    A token is predicted from at most `context_bytes` bytes before it, by all packs alike; the
    probabilities are over all ids that a pack has.

    Args:
        body_folder: A body that predicts next tokens.
        packs: Folders of languages by their names.
        texts: Files of documents, with an empty line between them.
        context_bytes: At least 1.
        precision: fp32, bf16, fp16 or auto; by default fp32 on a CPU, as the exported model has it
            there, and auto on a GPU.
        strength: Share of what a body has learned that it keeps.

    Raises:
        UserError: The body predicts no next tokens, or something is missing, damaged or does not
            fit.
    """
    if context_bytes < 1:
        raise UserError(f"--context-bytes {context_bytes}: there must be at least 1")
    files = paths_of(texts)
    task = TextConfig(kind="bits-per-byte", test={}, context_bytes=context_bytes)
    documents = {file: Text().read(file, task, language="", labels=None) for file in files}
    rows: list[Bits] = []
    plugged = _plugged(
        body_folder,
        packs,
        context_bytes=context_bytes,
        precision=precision,
        strength=strength,
    )
    for name, module, tokenizer, max_length in plugged:
        for file in files:
            score = score_text(
                module,
                tokenizer,
                documents[file],
                max_length=max_length,
                context_bytes=context_bytes,
            )
            rows.append(Bits(name, file, *score))
    return sorted(rows, key=lambda row: files.index(row.text))


def _plugged(
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    context_bytes: int,
    precision: str | None,
    strength: float,
) -> Iterator[tuple[str, TokenLikelihoods, Tokenizer, int]]:
    """Yield (name of a pack, a module with it, its tokenizer, most tokens of a sequence)."""
    body = load_body(body_folder)
    if body.task is not None or not OBJECTIVES[body.objective].causal:
        raise UserError(
            f"{body_folder}: predicts no next tokens; bits per byte are of a body that does"
        )
    positions = body.config.max_positions
    if positions <= max(3, context_bytes):
        raise UserError(
            f"{body_folder}: has {positions} positions, and a byte may take one, so packs would "
            f"see unequal contexts; give --context-bytes {positions - 1} or fewer"
        )
    device, dtype = _device_and_dtype(precision)
    opened = {name: open_pack(folder, body, body_folder) for name, folder in packs.items()}
    for name, (language, tokenizer) in opened.items():
        with torch.device("meta"):
            module = TokenLikelihoods(body.config, language.rows)
        module.requires_grad_(requires_grad=False)
        materialise(module, dtype, device)
        load_into(module, tensors_of(body, module.body), "body.")
        plug(module.eval(), language, body, strength=strength)
        yield name, module, tokenizer, positions


def _device_and_dtype(precision: str | None) -> tuple[torch.device, torch.dtype]:
    """Return the device on which a model computes, and its precision.

    Without a `precision` that is fp32 on a CPU, as the exported model has it there.
    """
    device = gpu.device()
    if device.type == "cpu":
        configure_cpu()
    else:
        gpu.check_gpus(1)
    if precision not in (None, "auto", *DTYPES):
        raise UserError(f"--precision {precision}: there are {', '.join(DTYPES)} and auto")
    default = "fp32" if device.type == "cpu" else "auto"
    return device, DTYPES[resolve_precision(precision or default, device, "--precision")]
