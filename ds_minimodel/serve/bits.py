"""Bits a byte of texts by a body with each of several packs: what an added language brings, and what it takes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.models.artifacts import load_body, plug
from ds_minimodel.models.mini import tensors_of
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import TokenLikelihoods, load_into
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.serve.packs import open_pack
from ds_minimodel.tasks.batches import outputs
from ds_minimodel.tasks.kind import R, Scores
from ds_minimodel.tasks.likelihood import LikelihoodKind, Scored, Text

CONTEXT = 600  # bytes


class Bits(NamedTuple):
    """Of a text by a pack: bits a byte, and bytes a token, which is what generation costs; an unknown byte is one."""

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
) -> list[Bits]:
    """Rows for each text and pack. texts: files of documents, with an empty line between them.

    A token is predicted from at most `context_bytes` bytes before it, by all packs alike; the probabilities are over
    all ids that a pack has. precision: fp32, bf16, fp16, or auto, the fastest that suits the device; default: fp32 on a
    CPU, auto on a GPU. UserError for a body that does not predict next tokens, and for
    what is missing, damaged or does not fit.
    """
    if context_bytes < 1:
        raise UserError(f"--context-bytes {context_bytes}: there must be at least 1")
    task, rows = SimpleNamespace(context_bytes=context_bytes), []
    for name, text, records, encoded, score in score_files(Text(), task, body_folder, packs, texts, precision):
        tokens = int((encoded.examples.lengths - 1).sum())
        tokens += sum(encoded.unknown)
        rows.append(Bits(name, text, float(score["bits_per_byte"]), records.num_bytes / max(1, tokens)))
    return sorted(rows, key=lambda row: [*map(str, texts)].index(row.text))


def score_files(
    kind: LikelihoodKind[R],
    task: Any,
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    files: Sequence[str | Path],
    precision: str | None = None,
) -> Iterator[tuple[str, str, R, Scored, Scores]]:
    """(pack, file, what is in it, as encoded, its scores) by each pack of each file. task: the kind's settings."""
    artifact = load_body(body_folder)
    if artifact.task is not None or not OBJECTIVES[artifact.objective].causal:
        raise UserError(f"{body_folder}: predicts no next tokens; bits a byte are of a body that does")
    if not packs:
        raise UserError("no language pack; give one at least, for example --pack de=FOLDER")
    if precision not in (None, "auto", *DTYPES):
        raise UserError(f"--precision {precision}: there are {', '.join(DTYPES)} and auto")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        configure_cpu()
    else:
        check_gpus(1)
    named = resolve_precision(precision or ("fp32" if device.type == "cpu" else "auto"), device, "--precision")
    opened = {name: open_pack(folder, artifact, body_folder) for name, folder in packs.items()}
    for name, (pack, tokenizer) in opened.items():
        module = TokenLikelihoods(artifact.config, len(pack.tensors["tokens"]))
        load_into(module, tensors_of(artifact, module.body), "body.")
        plug(module, pack)
        module.eval().to(device, DTYPES[named])
        for file in map(str, files):
            records = kind.read(file, task, "", None)
            encoded = kind.encode(tokenizer, records, task, artifact.config.max_positions)
            yield (
                name,
                file,
                records,
                encoded,
                kind.score(task, name, records, encoded, outputs(module, encoded.examples)),
            )
