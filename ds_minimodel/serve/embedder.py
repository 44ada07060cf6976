"""Vectors of sentences: a body's hidden states, their mean or that of `<s>`, in every language with a pack."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.lib.format import write_array_header_1_0

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write
from ds_minimodel.common.progress import Progress
from ds_minimodel.data.rows import text_field
from ds_minimodel.models.artifacts import load_body
from ds_minimodel.models.mini import tensors_of
from ds_minimodel.models.trainable import SentenceEncoder, load_into, tensors_under
from ds_minimodel.serve.predictor import ManyLanguages, SharedModel, outputs
from ds_minimodel.tasks.retrieval import Pool, collected, sentences_of, unit

log = logging.getLogger(__name__)

_PART = 1 << 14  # texts whose vectors are computed together


class Embedder(ManyLanguages):
    """A body, mini-model or task model that gives vectors of sentences.

    >>> embedder = Embedder("pretrain/minijoint/body", {"de": "adapt/minijoint/de/pack"})
    >>> embedder.embed(["Es regnet.", "Die Sonne scheint."]).shape
    (2, 768)

    A text is `<s>`, its tokens, `</s>`; an empty one has a vector too. Vectors have length 1, so that the product of
    two is their cosine.
    """

    def __init__(
        self,
        model_folder: str | Path,
        pack_folders: Mapping[str, str | Path],
        pool: Pool = "mean",
        depth: int | None = None,
        precision: str | None = None,
    ):
        """pool: "mean" over all tokens, or "first", that of `<s>`. depth: layers that are run; all where not given.

        pack_folders, precision: as of Predictor. UserError for what is missing, damaged or does not fit.
        """
        if pool not in get_args(Pool):
            raise UserError(f"--pool {pool}: there are {' and '.join(get_args(Pool))}")
        artifact = load_body(model_folder)
        num_layers = artifact.config.num_layers
        if depth is not None and not 1 <= depth <= num_layers:
            raise UserError(f"--depth {depth}: {model_folder} has {num_layers} layers; give 1 to {num_layers}")
        config = artifact.config.with_layers(depth or num_layers)
        body = replace(artifact, tensors=tensors_under(artifact.tensors, "body.")) if artifact.task else artifact
        module = SentenceEncoder(config, 2)
        load_into(module, tensors_of(body, module.body), "body.")
        super().__init__(artifact, model_folder, pack_folders, precision)
        self.model = SharedModel(module, artifact, self)
        self.pool, self.size, self.max_length = pool, config.hidden_size, config.max_positions

    def embed(self, texts: Sequence[str], language: str | None = None) -> np.ndarray:
        """(texts, H) float32, in their order; `language` may be left out where there is one.

        Texts that are too long for the model are cut; a warning says how many.
        """
        return np.concatenate([np.zeros((0, self.size), np.float32), *self.parts(texts, language)])

    def write(self, texts: Sequence[str], path: str | Path, language: str | None = None) -> None:
        """Write what `embed` gives as a .npy, of which no more than a part is in memory."""
        with atomic_write(path) as file:
            progress = Progress("embed", len(texts), "texts")
            shape = len(texts), self.size
            write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for part in self.parts(texts, language):
                file.write(part.astype("<f4", copy=False).tobytes())
                progress.update(progress.done + len(part))
        progress.close()

    def parts(self, texts: Sequence[str], language: str | None = None) -> Iterator[np.ndarray]:
        """What `embed` gives, in parts, so that it need not all be in memory."""
        language = self.language(language, "texts")
        for number, text in enumerate(texts, 1):
            text_field({"text": text}, "text", f"text {number}")
        tokenizer, num_cut = self.tokenizers[language], 0
        room = self.max_length - sum(map(len, tokenizer.vocabulary.frame))
        for first in range(0, len(texts), _PART):
            ids = tokenizer.encode(texts[first : first + _PART])
            num_cut += sum(len(of_text) > room for of_text in ids)
            self.model.plug(language)
            examples = sentences_of(tokenizer.vocabulary, ids, self.max_length, self.pool)
            yield unit(collected(outputs(self.model.module, examples), len(ids)))
        if num_cut:
            longest = f"the {self.max_length:,} tokens that the model takes"
            log.warning(f"{num_cut:,} of {len(texts):,} texts are longer than {longest}, and were cut")
