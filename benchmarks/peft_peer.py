"""A LoRA as people train one by PEFT and transformers, to set beside what `extend` makes.

    python -m benchmarks.peft_peer MODEL TEXT OUT --tokens 150000 --rate 2e-4
    ds-minimodel compare MODEL OUT --text de=OTHER_TEXT

MODEL is a folder of transformers or a GGUF file. Rank, samples, batches and the rate's schedule are
those of `extend`, and so is the rate unless --rate gives another; there are no new tokens and no
replay. OUT is a folder for PEFT with steps.json, the seconds of each step.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback, TrainingArguments

from ds_minimodel.artifacts.base import keep_vocabulary, module_of
from ds_minimodel.config.steps import DECAY
from ds_minimodel.extend.recipe import BATCHES, PRESETS, SEQ_LENGTH, TRIED_RANK
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.text.reader import read_documents


class Clock(TrainerCallback):
    """Keeps the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Start a step."""
        self.begun = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        """End a step."""
        self.seconds.append(time.perf_counter() - self.begun)


def main() -> None:
    """Train an adapter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=150_000)
    parser.add_argument("--rate", type=float, default=PRESETS["lora"].rate)
    options = parser.parse_args()

    keep_vocabulary(options.model, options.out / "vocabulary")
    tokenizer = tokenizer_of(options.out / "vocabulary")
    ids = list[int]()
    for document in read_documents([options.text]):
        ids += tokenizer("\n".join(document))["input_ids"] + [tokenizer.eos_token_id]
    samples = torch.tensor(ids[: len(ids) // SEQ_LENGTH * SEQ_LENGTH]).view(-1, SEQ_LENGTH)

    batch = min(BATCHES.values())
    steps = options.tokens // (batch * SEQ_LENGTH)
    decay = round(DECAY * steps)
    lora = LoraConfig(
        r=TRIED_RANK, lora_alpha=2 * TRIED_RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(module_of(options.model, torch.bfloat16), lora)
    settings = TrainingArguments(
        output_dir=str(options.out / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=options.rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": decay},
        warmup_steps=round(0.08 * steps),
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        seed=1,
    )
    clock = Clock()
    rows = [{"input_ids": sample, "labels": sample} for sample in samples]
    Trainer(model=model, args=settings, train_dataset=rows, callbacks=[clock]).train()
    model.save_pretrained(options.out)
    (options.out / "steps.json").write_text(json.dumps(clock.seconds))


if __name__ == "__main__":
    main()
