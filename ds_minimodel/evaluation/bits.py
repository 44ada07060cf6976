"""Bits per byte of texts by a body with each of several packs: what an added language brings, and
what it takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ds_minimodel.artifacts.adaptation import plug
from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import paths_of
from ds_minimodel.evaluation.batches import outputs
from ds_minimodel.evaluation.kind import C, R, Scores
from ds_minimodel.evaluation.likelihood import LikelihoodKind, Scored, Text, TextConfig
from ds_minimodel.evaluation.packs import open_pack
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import TokenLikelihoods, load_into, materialise
from ds_minimodel.ops import gpu
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.precision import DTYPES, resolve_precision

CONTEXT = 600  # bytes


class Bits(NamedTuple):
    """Of a text by a pack: bits per byte, and bytes per token, which generation costs; an unknown
    byte is one.
    """

    pack: str
    text: str
    bits_per_byte: float
    bytes_per_token: float


def bits_per_byte(
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    texts: Sequence[str | Path],
    context_bytes: int = CONTEXT,
    precision: str | None = None,
    strength: float = 1.0,
) -> list[Bits]:
    """Rows for each text and pack. texts: files of documents, with an empty line between them.

    A token is predicted from at most `context_bytes` bytes before it, by all packs alike; the
    probabilities are over all ids that a pack has. precision: fp32, bf16, fp16 or auto. strength:
    share of what a body has learned that it keeps. UserError for a body that does not predict next
    tokens, and for what is missing, damaged or does not fit.
    """
    if context_bytes < 1:
        raise UserError(f"--context-bytes {context_bytes}: there must be at least 1")
    task, texts = (
        TextConfig(kind="bits-per-byte", test={}, context_bytes=context_bytes),
        paths_of(texts),
    )
    rows = []
    for name, text, records, encoded, score in score_files(
        Text(), task, body_folder, packs, texts, precision, strength
    ):
        tokens = int((encoded.examples.lengths - 1).sum()) + sum(encoded.unknown)
        rows.append(
            Bits(name, text, float(score["bits_per_byte"]), records.num_bytes / max(1, tokens))
        )
    return sorted(rows, key=lambda row: texts.index(row.text))


def score_files(
    kind: LikelihoodKind[R, C],
    task: C,
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    files: Sequence[str | Path],
    precision: str | None = None,
    strength: float = 1.0,
) -> Iterator[tuple[str, str, R, Scored, Scores]]:
    """(pack, file, what is in it, as encoded, its scores) of each pack on each file. task: the
    kind's settings.
    """
    body = load_body(body_folder)
    if body.task is not None or not OBJECTIVES[body.objective].causal:
        raise UserError(
            f"{body_folder}: predicts no next tokens; bits per byte are of a body that does"
        )
    if (positions := body.config.max_positions) <= task.least_length:
        raise UserError(
            f"{body_folder}: has {positions} positions, and a byte may take one, so packs would "
            "see unequal contexts; "
            f"give --context-bytes {positions - 1} or fewer"
        )
    device, dtype = _place(precision)
    opened = {name: open_pack(folder, body, body_folder) for name, folder in packs.items()}
    read = {file: kind.read(file, task, "", None) for file in map(str, files)}
    for name, (language, tokenizer) in opened.items():
        with torch.device("meta"):
            module = TokenLikelihoods(body.config, language.rows).requires_grad_(False)
        materialise(module, dtype, device)
        load_into(module, tensors_of(body, module.body), "body.")
        plug(module.eval(), language, body, strength)
        for file, records in read.items():
            encoded = kind.encode(tokenizer, records, task, body.config.max_positions)
            score = kind.score(task, name, records, encoded, outputs(module, encoded.examples))
            yield name, file, records, encoded, score


def _place(precision: str | None) -> tuple[torch.device, torch.dtype]:
    """Where a model computes, and in what: without a `precision` in fp32 on a CPU, as the exported
    model does there.
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
