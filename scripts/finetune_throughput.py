"""Throughput of finetuning against the set-up of Hugging Face's examples (run_glue, run_qa) on the same batches.

    python scripts/finetune_throughput.py --kind pair --train TRAIN.jsonl --tokenizer FOLDER --out RESULT.json
    python scripts/finetune_throughput.py --kind qa --batch-size 12 --train TRAIN.json --tokenizer FOLDER

RoBERTa-base sizes, random weights, fp32, one thread, the same malloc settings for all. Each contestant finetunes
the same batches in a process of its own, one after another, in several rounds; CPU time of the whole step counts.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ds_minimodel.common.files import write_json
from ds_minimodel.engine.ranks.launch import CPU

if TYPE_CHECKING:
    from ds_minimodel.tasks.batches import TaskSampler

LENGTHS = {"classification": 128, "pair": 128, "qa": 384}  # run_glue's and run_qa's max_seq_length
WARM_UP = 1  # optimizer steps that are not counted
CONTESTANTS = ("ds_minimodel", "hf max_length", "hf dynamic", "hf max_length frozen", "hf dynamic frozen")


def main() -> None:
    """Time all contestants, or be one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=LENGTHS, required=True)
    parser.add_argument("--train", required=True, help="task file in the source language")
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer or language pack")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps that are counted, a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="JSON file with the result")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(examples_per_second(options)))
        return
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        rounds.append({name: run_worker(name) for name in CONTESTANTS})
        result = summary(options, rounds)
        print(json.dumps(result, indent=1), flush=True)
        if options.out:
            write_json(options.out, result)


def run_worker(name: str) -> float:
    """Examples a second of one contestant."""
    environment = {**CPU, **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *sys.argv, "--contestant", name],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def summary(options: argparse.Namespace, rounds: list[dict[str, float]]) -> dict:
    """Medians over the rounds, and the circumstances."""
    import deepspeed
    import torch
    import transformers

    from ds_minimodel.benchmark.peaks import device_name

    ratios = {name: [row["ds_minimodel"] / row[name] for row in rounds] for name in CONTESTANTS[1:]}
    return {
        "task": options.kind,
        "max_length": LENGTHS[options.kind],
        "batch_size": options.batch_size,
        "examples_per_second": {name: statistics.median(row[name] for row in rounds) for name in CONTESTANTS},
        "speedup": {name: statistics.median(values) for name, values in ratios.items()},
        "speedup_range": {name: [min(values), max(values)] for name, values in ratios.items()},
        "rounds": len(rounds),
        "steps": options.steps,
        "threads": 1,
        "precision": "fp32",
        "device": f"{device_name()}, 1 of {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "transformers": transformers.__version__,
    }


class Enough(Exception):
    """The steps to count have been seen."""


class Clock:
    """CPU time at the start of each forward pass of a module."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: list[float] = []

    def __call__(self, *_: object) -> None:
        self.times.append(time.process_time())
        if len(self.times) > WARM_UP + self.steps:
            raise Enough

    def seconds_per_step(self) -> float:
        """CPU time of one of the steps that count."""
        return (self.times[-1] - self.times[WARM_UP]) / self.steps


def examples_per_second(options: argparse.Namespace) -> float:
    """Examples that this process's contestant trains in a second of CPU time."""
    import torch

    from ds_minimodel.data.tokenizer import open_tokenizer
    from ds_minimodel.recipe.schema import Task
    from ds_minimodel.tasks import FINETUNED
    from ds_minimodel.tasks.batches import TaskSampler

    torch.set_num_threads(1)
    tokenizer, length = open_tokenizer(options.tokenizer), LENGTHS[options.kind]
    kind, task = FINETUNED[options.kind], Task(kind=options.kind, train=options.train, test={})
    labels = kind.labels(task, "en")
    examples = kind.encode(tokenizer, kind.read(task.train, task, "en", labels), task, length).examples
    sampler, clock = TaskSampler(examples, options.batch_size, seed=1), Clock(options.steps)
    finetune = ours if options.contestant == "ds_minimodel" else hugging_face
    with contextlib.suppress(Enough):
        finetune(options, sampler, tokenizer.vocab_size, labels, clock)
    return options.batch_size / clock.seconds_per_step()


def ours(
    options: argparse.Namespace, sampler: "TaskSampler", vocab_size: int, labels: list[str] | None, clock: Clock
) -> None:
    """Train with the finetune step's own module, batches and loop."""
    from ds_minimodel.engine.checkpoints.storage import CheckpointPolicy
    from ds_minimodel.engine.execution import Execution
    from ds_minimodel.engine.loop import train
    from ds_minimodel.engine.ranks.world import join_ranks
    from ds_minimodel.engine.run import Accounting, Run
    from ds_minimodel.engine.schedule import Schedule
    from ds_minimodel.model.parameters import train_only
    from ds_minimodel.model.transformer import BodyConfig
    from ds_minimodel.steps.training import micro_batches
    from ds_minimodel.tasks import FINETUNED

    world, steps = join_ranks(), WARM_UP + options.steps + 1
    module = FINETUNED[options.kind].module(BodyConfig(12, 768, 12, 3072, 512), vocab_size, labels)
    train_only(module, lambda name: not name.startswith("pack."))
    module.register_forward_pre_hook(clock)
    run = Run(
        Schedule(steps=steps, lr=1e-5, warmup_steps=1),
        Execution(options.batch_size, options.batch_size, zero_stage=1, precision="fp32"),
        Accounting(tokens_per_step=1, phases=((steps, 0.0, 0.0),)),
        checkpoints=CheckpointPolicy(every=10**9, keep_last=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        train(module, micro_batches(sampler, run, world), run, world, folder, "finetune", "benchmark")


def hugging_face(
    options: argparse.Namespace, sampler: "TaskSampler", vocab_size: int, labels: list[str] | None, clock: Clock
) -> None:
    """Train by transformers' Trainer with the examples' defaults; padded to max_length or, "dynamic", the longest."""
    import torch
    from transformers import (
        RobertaConfig,
        RobertaForQuestionAnswering,
        RobertaForSequenceClassification,
        Trainer,
        TrainingArguments,
    )

    from ds_minimodel.tasks import FINETUNED

    num_labels = FINETUNED[options.kind].num_outputs(labels)
    config = RobertaConfig(vocab_size=vocab_size, max_position_embeddings=514, type_vocab_size=1, num_labels=num_labels)
    model = (RobertaForQuestionAnswering if options.kind == "qa" else RobertaForSequenceClassification)(config)
    if options.contestant.endswith("frozen"):
        model.roberta.embeddings.word_embeddings.weight.requires_grad_(False)
    model.register_forward_pre_hook(clock)
    max_length = LENGTHS[options.kind] if "max_length" in options.contestant else 0

    def collate(rows):
        width = max(max_length, max(len(row["tokens"]) for row in rows))
        tokens = torch.full((len(rows), width), config.pad_token_id)
        for place, row in enumerate(rows):
            tokens[place, : len(row["tokens"])] = torch.from_numpy(row["tokens"])
        batch = {"input_ids": tokens, "attention_mask": (tokens != config.pad_token_id).long()}
        targets = torch.tensor([row["targets"] for row in rows])
        if options.kind == "qa":
            return {**batch, "start_positions": targets[:, 0], "end_positions": targets[:, 1]}
        return {**batch, "labels": targets[:, 0]}

    steps = WARM_UP + options.steps + 1
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=2e-5,
            use_cpu=True,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        Trainer(model, arguments, collate, rows_of(sampler, steps * options.batch_size)).train()


def rows_of(sampler: "TaskSampler", count: int) -> list[dict]:
    """First `count` samples of the same order, unpadded."""
    batch = sampler.rows(0, count)
    return [
        {"tokens": tokens[:length], "targets": targets.tolist()}
        for tokens, length, targets in zip(batch["tokens"], batch["lengths"], batch["targets"], strict=True)
    ]


if __name__ == "__main__":
    main()
