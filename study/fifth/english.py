"""The classifier of English topics that the fifth study's part B extends, by transformers."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from ds_minimodel.common.files import read_json_lines

EPOCHS = 2
BATCH = 32
RATE = 5e-5
MAX_TOKENS = 128


def finetune(base: Path, train: Path, out: Path, seed: int) -> None:
    """Train a new head and all weights of `base` on labelled texts."""
    rows = read_json_lines(train)
    labels = sorted({row["label"] for row in rows})
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(
        base,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    examples = [
        {
            **tokenizer(row["text"], truncation=True, max_length=MAX_TOKENS),
            "label": labels.index(row["label"]),
        }
        for row in rows
    ]
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        seed=seed,
        bf16=True,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorWithPadding(tokenizer)
    Trainer(model=model, args=arguments, train_dataset=examples, data_collator=collator).train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def accuracy(model: Path, tasks: Path) -> float:
    """Percentage of English test texts that a folder labels right, as transformers reads it."""
    rows = read_json_lines(tasks / "test.en.jsonl")
    ask = pipeline("text-classification", str(model), device="cpu")
    texts = [row["text"] for row in rows]
    answers = ask(texts, batch_size=BATCH, truncation=True, max_length=MAX_TOKENS)
    right = [answer["label"] == row["label"] for answer, row in zip(answers, rows, strict=True)]
    return 100 * sum(right) / len(right)
