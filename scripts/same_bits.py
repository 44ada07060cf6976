"""Say whether two checkouts make the same bits on this machine: the guard of a change that should
alter no result.

    python scripts/same_bits.py --save before.json            # of this checkout
    python scripts/same_bits.py before.json                   # this checkout against that record
    python scripts/same_bits.py ../other-checkout             # or against another checkout

A miniature pipeline, from text to scores, runs over three kinds of body (RoBERTa's, ModernBERT's,
Llama's), each by compiled kernels and by torch's references, in fp32 and bf16, on one rank and two;
a Llama's body is then a base that new pieces are added to, by their rows alone and by LoRA. 24
cases, a quarter of an hour on two cores. `--only llama-compiled` takes those whose names hold the
text. Compared are the losses of each training run and of held-out text, scores, token stores
(SHA-256 of their files), and a job's tensors by name and bytes, in whatever file below its folder
they lie. Exit code 1: something differs.

Each checkout has its own kernels and its own recipe: that of its tests, and of the keys below those
that it has.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
ALL = (
    "adapt.depth_schedule=[]",
    "finetune.seeds=1",
    "pretrain.steps=4",
    "build_mini.steps=4",
    "adapt.steps=4",
    "adapt.snapshot_every=2",
    "data.held_out=0.1",
)
KINDS = {
    "roberta": ["systems=[bl_base, bl_small, minijoint, minipost]"],
    "modernbert": ["model.kind=modernbert", "model.window=8", "systems=[minijoint, minipost]"],
    "llama": [
        "model.kind=llama",
        "model.num_kv_heads=1",
        "model.tie_output=false",
        "tokenizer.kind=byte-bpe",
        "tokenizer.vocab_size=300",
        "systems=[minijoint, minipost]",
    ],
}
# Over what the run before has pretrained.
EXTENDED = (
    "base={base}",
    "workdir={folder}/extended",
    "systems=[bl_base, lora]",
    "tokenizer.vocabulary=extend",
    "tokenizer.kind=byte-bpe",
    "tokenizer.vocab_size=24",
    "adapt.rank=2",
    "finetune.tasks={{bits: {{kind: bits-per-byte, context_bytes: 48, test: "
    "{{en: {folder}/bits.en.txt, xx: {folder}/bits.xx.txt}}}}}}",
)
OPS = {"compiled": {}, "reference": {"DSMM_OPS": "reference"}}
CASES = {
    "-".join(case): case for case in itertools.product(KINDS, OPS, ("fp32", "bf16"), ("1", "2"))
}  # name: kind, operators, precision, ranks
_MAKE_WORLD = (
    "import sys, pathlib, tests.pipeline.conftest as c; "
    "print(c.make_world(pathlib.Path(sys.argv[1])))"
)

Record = dict[str, str]  # what and where: SHA-256


def record(tree: Path, only: str) -> dict[str, Record]:
    """{case: its Record} of a checkout."""
    found = {}
    for name in (name for name in CASES if only in name):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{tree}: {name}", file=sys.stderr)
            found[name] = _run(tree.resolve(), Path(folder), *CASES[name])
    return found


def _run(tree: Path, folder: Path, kind: str, ops: str, precision: str, ranks: str) -> Record:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree}:{tree / 'examples'}",
        "OMP_NUM_THREADS": "1",
        **OPS[ops],
    }
    known = (tree / "docs/recipes.md").read_text()

    def python(*arguments: str | Path) -> str:
        process = [sys.executable, *arguments]
        done = subprocess.run(process, env=environment, cwd=tree, capture_output=True, text=True)
        if done.returncode:
            sys.exit(
                f"{tree}: {kind} {ops} {precision} on {ranks} ranks: "
                f"{done.returncode}\n{done.stderr[-2000:]}"
            )
        return done.stdout.strip()

    recipe = python("-c", _MAKE_WORLD, folder)
    keys = {
        path.rpartition(".")[2] for path in re.findall(r"^\| `([\w.]+)` \|", known, re.MULTILINE)
    }
    common = [key for key in ALL if key.partition("=")[0].rpartition(".")[2] in keys]
    for language in ("en", "xx"):
        pages = (folder / f"{language}.txt").read_text().split("\n\n")[:5]
        (folder / f"bits.{language}.txt").write_text("\n\n".join(pages))
    for options in [KINDS[kind], EXTENDED] if kind == "llama" else [KINDS[kind]]:
        made = folder / "run/pretrain/bl_base"
        base = (
            made / "model" if (made / "model").is_dir() else made
        )  # of a checkout whose bases are body and pack
        settings = [
            *common,
            *(key.format(folder=folder, base=base) for key in options),
            f"engine.precision={precision}",
        ]
        python("-m", "ds_minimodel", "run", recipe, "--ranks", ranks, *settings)
    return {
        key: found
        for name in ("run", "extended")
        for key, found in _found(folder, folder / name).items()
    }


def _found(folder: Path, workdir: Path) -> Record:
    found: Record = {}
    tensors = defaultdict(list)  # of a job and a name: those of its snapshots, too
    for path in sorted(
        path for path in workdir.rglob("*") if path.is_file() and "report" not in path.parts
    ):
        place = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            found[f"losses {place}"] = _sha256(_losses(path))
        elif path.name == "scores.json":
            found[f"scores {place}"] = _sha256(path.read_bytes())
        elif path.suffix in (".bin", ".idx"):
            found[f"tokens {place}"] = _sha256(path.read_bytes())
        elif path.suffix == ".safetensors":
            jobs = (
                parent
                for parent in path.parents
                if parent.with_name(f"{parent.name}.job.json").exists()
            )
            job = next(jobs, path.parent)
            for name, tensor in load_file(path).items():
                form = f"{tensor.dtype} {[*tensor.shape]} ".encode()
                data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
                tensors[f"tensor {job.relative_to(folder)} {name}"].append(_sha256(form + data))
    return found | {
        key: _sha256("".join(sorted(hashes)).encode()) for key, hashes in tensors.items()
    }


def _losses(path: Path) -> bytes:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [
        [
            record["step"],
            *(record[key] for key in sorted(record) if "loss" in key or "held_out" in key),
        ]
        for record in records
    ]
    return json.dumps(losses).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differences(here: dict[str, Record], there: dict[str, Record]) -> list[str]:
    """A line for each thing that only one record has, or that differs; of the cases that both
    have.
    """
    lines = []
    for case in sorted(here.keys() & there.keys()):
        for key in sorted(here[case].keys() | there[case].keys()):
            hashes = here[case].get(key), there[case].get(key)
            if hashes[0] != hashes[1]:
                what = "differs" if all(hashes) else "only here" if hashes[0] else "only there"
                lines.append(f"{case}: {key}: {what}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "other", nargs="?", type=Path, help="another checkout, or a file that --save has written"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write the record of this checkout"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="the cases whose names hold this"
    )
    arguments = parser.parse_args()
    if not (arguments.other or arguments.save):
        parser.error("name another checkout or a record, or --save FILE")
    here = record(ROOT, arguments.only)
    if arguments.save:
        arguments.save.write_text(json.dumps(here, indent=1))
    if arguments.other:
        is_file = arguments.other.is_file()
        there = (
            json.loads(arguments.other.read_text())
            if is_file
            else record(arguments.other, arguments.only)
        )
        lines = differences(here, there)
        compared = Counter(
            key.split()[0] for case in here.keys() & there.keys() for key in here[case]
        )
        kinds = ", ".join(f"{number} {kind}" for kind, number in compared.items())
        print(*lines, f"compared: {kinds}; {len(lines)} differ", sep="\n")
        sys.exit(bool(lines) or not compared)


if __name__ == "__main__":
    main()
