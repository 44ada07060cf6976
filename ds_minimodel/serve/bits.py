"""Bits a byte of texts by a body with each of several packs: what an added language brings, and what it takes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.models.artifacts import load_body
from ds_minimodel.models.mini import tensors_of
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import TokenLikelihoods, load_into
from ds_minimodel.serve.predictor import ManyLanguages, SharedModel, outputs
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
    all ids that a pack has. precision: as of Predictor. UserError for a body that does not predict next tokens, and for
    what is missing, damaged or does not fit.
    """
    if context_bytes < 1:
        raise UserError(f"--context-bytes {context_bytes}: there must be at least 1")
    task, rows = SimpleNamespace(context_bytes=context_bytes), []
    for name, text, records, encoded, score in score_files(Text(), task, body_folder, packs, texts, precision):
        tokens = int((encoded.examples.lengths - 1).sum())
        tokens += sum(encoded.unknown)
        rows.append(Bits(name, text, float(score["bits_per_byte"]), records.num_bytes / max(1, tokens)))
    return rows


def score_files(
    kind: LikelihoodKind[R],
    task: Any,
    body_folder: str | Path,
    packs: Mapping[str, str | Path],
    files: Sequence[str | Path],
    precision: str | None = None,
) -> Iterator[tuple[str, str, R, Scored, Scores]]:
    """(pack, file, what is in it, as encoded, its scores) of each file by each pack. task: the kind's settings."""
    artifact = load_body(body_folder)
    if artifact.task is not None or not OBJECTIVES[artifact.objective].causal:
        raise UserError(f"{body_folder}: predicts no next tokens; bits a byte are of a body that does")
    languages = ManyLanguages(artifact, body_folder, packs, precision)
    module = TokenLikelihoods(artifact.config, 2)
    load_into(module, tensors_of(artifact, module.body), "body.")
    model = SharedModel(module, artifact, languages)
    for file in map(str, files):
        records = kind.read(file, task, "", None)
        for name, tokenizer in languages.tokenizers.items():
            model.plug(name)
            encoded = kind.encode(tokenizer, records, task, artifact.config.max_positions)
            score = kind.score(task, name, records, encoded, outputs(module, encoded.examples))
            yield name, file, records, encoded, score
