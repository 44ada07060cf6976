"""Training of an embedding model on pairs, beside sentence-transformers' own trainer.

    python -m benchmarks.sentences MODEL PAIRS.tsv --language de --threads 1 --turns 3

MODEL is a folder as sentence-transformers reads it, PAIRS a table of English and another language,
without a header. Each contestant is a process of its own, in turns:

- `rows`: `ds-minimodel extend`, new token embeddings over the frozen body;
- `reimers`: sentence-transformers' trainer with MSELoss toward the vectors of the English lines,
  all weights (Reimers and Gurevych 2020);
- `frozen`: the same with the body frozen and all token embeddings training.

A line counts when it passes the encoder in a training step; a step of sentence-transformers reads
both sides of a pair. Vectors of targets are made beforehand for all, and don't count. OUT gets a
line of JSON a run: lines a second (the median over steps after the first ones), and peak memory
beyond that of a process that has loaded torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks.peak import peak
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.launch.hosts import CPU

WARM_STEPS = 5  # that do not count
BATCH = 48  # lines of a step, as extend has them
TABLE = "0.model.embeddings.word_embeddings.weight"
CONTESTANTS = ("rows", "reimers", "frozen")


def train_rows(options: argparse.Namespace, folder: Path) -> float:
    """Train new token embeddings by `extend`; return lines a second."""
    base = json.loads((Path(options.model) / "sentence_bert_config.json").read_text())
    line = base["max_seq_length"]  # tokens of the longest, by which extend counts tokens
    call = ["extend", options.model, "--pairs", options.pairs, "--language", options.language]
    call += ["--tokens", str(options.steps * BATCH * line), "--out", str(folder / "extended")]
    subprocess.run([sys.executable, "-m", "ds_minimodel", *call], check=True)
    run = folder / "extended/run"
    if options.precision == "fp32":  # extend takes bf16 where the processor has it
        run = folder / "fp32"
        again = ["run", folder / "extended/recipe.yaml", f"workdir={run}", "engine.precision=fp32"]
        subprocess.run([sys.executable, "-m", "ds_minimodel", *map(str, again)], check=True)
    (metrics,) = run.glob("adapt/*/*/run/metrics.jsonl")
    rates = [row["tokens_per_second"] for row in read_json_lines(metrics)]
    return statistics.median(rates[WARM_STEPS:]) / line


def train_peer(options: argparse.Namespace, folder: Path, frozen: bool) -> float:
    """Train by sentence-transformers; return lines a second."""
    from sentence_transformers import SentenceTransformer
    from transformers import TrainerCallback

    from benchmarks.mse_peer import train_toward_english

    model = SentenceTransformer(options.model, device="cpu")
    lines = Path(options.pairs).read_text().splitlines()[: options.steps * BATCH]
    pairs = [(source, target) for source, target, *_ in (line.split("\t") for line in lines)]
    if frozen:
        model.requires_grad_(False)
        model.get_parameter(TABLE).requires_grad_(True)
    seconds = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            seconds.append(time.perf_counter() - self.begun)

    train_toward_english(
        model,
        pairs,
        folder / "trainer",
        Clock(),
        max_steps=options.steps,
        per_device_train_batch_size=BATCH // 2,
        bf16=options.precision == "bf16",
    )
    return BATCH / statistics.median(seconds[WARM_STEPS:])


def write_result(folder: Path, name: str, **facts: object) -> None:
    """Leave what this process found where the one that started it reads it."""
    (folder / f"{name}.json").write_text(json.dumps(facts))


def run_one(options: argparse.Namespace, name: str) -> dict[str, object]:
    """Run a contestant in a process of its own; return its line."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "benchmarks.sentences", options.model, options.pairs]
        for key in ("language", "threads", "steps", "precision"):
            command += [f"--{key}", str(getattr(options, key))]
        memory, _, code = peak([*command, "--only", name, "--folder", temporary])
        if code:
            sys.exit(f"{name}: exit code {code}")
        found = json.loads((Path(temporary) / "found.json").read_text())
    empty, _, _ = peak([sys.executable, "-c", "import torch, time; time.sleep(0.5)"])
    return {"contestant": name, **found, "memory_gb": round((memory - empty) / 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--language", default="de")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/sentences.jsonl"))
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        if options.only == "rows":
            rate = train_rows(options, options.folder)
        else:
            rate = train_peer(options, options.folder, frozen=options.only == "frozen")
        write_result(options.folder, "found", lines_per_second=round(rate, 1))
        return
    from benchmarks.device import device_name

    os.environ |= {**CPU, "OMP_NUM_THREADS": str(options.threads), "DS_ACCELERATOR": "cpu"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(options.turns):
        for name in CONTESTANTS:
            row = run_one(options, name)
            row |= {"threads": options.threads, "precision": options.precision}
            row |= {"device": device_name(), "date": date.today().isoformat()}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
