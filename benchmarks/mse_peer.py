"""Training of an embedding model as sentence-transformers' users do it: all weights, by MSELoss
toward the vectors of the English lines (Reimers and Gurevych 2020).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MSELoss
from transformers import TrainerCallback


def train_toward_english(
    model: SentenceTransformer,
    pairs: Sequence[tuple[str, str]],
    folder: Path,
    callback: TrainerCallback,
    **settings: Any,
) -> None:
    """Train a model on pairs of an English line and its translation.

    Args:
        model: Changed in place; what does not train is frozen already.
        pairs: A step reads both sides of its pairs.
        folder: Where the trainer keeps what it needs.
        callback: Called by the trainer.
        settings: Further arguments of the trainer.
    """
    english = [source for source, _ in pairs]
    labels = model.encode(english, batch_size=64)
    columns = {
        "english": english,
        "other": [target for _, target in pairs],
        "label": labels.tolist(),
    }
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        loss=MSELoss(model),
        callbacks=[callback],
    )
    torch.manual_seed(0)
    trainer.train()
