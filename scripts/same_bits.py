"""Say whether two checkouts make the same bits on this machine: the guard of a change that should alter no result.

    python scripts/same_bits.py --save before.json            # of this checkout
    python scripts/same_bits.py before.json                   # this checkout against that record
    python scripts/same_bits.py ../other-checkout             # or against another checkout

A miniature pipeline, from text to scores, runs over three kinds of body (RoBERTa's, ModernBERT's, Llama's), each by
compiled kernels and by torch's references, in fp32 and bf16, on one rank and two: 24 runs, a quarter of an hour on two
cores. `--only llama-compiled` takes those whose names hold the text. Compared are the SHA-256 of each training run's
losses, of weights, token stores and scores. Exit code 1: something differs. Each checkout has its own kernels.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.pipeline.conftest import make_world

KINDS = {
    "roberta": [],
    "modernbert": ["model.kind=modernbert", "model.window=8"],
    "llama": ["model.kind=llama", "model.num_kv_heads=1", "model.tie_output=false"],
}
DECODER = ["tokenizer.kind=byte-bpe", "tokenizer.vocab_size=300", "systems=[minijoint, minipost]"]
OPS = {"compiled": {}, "reference": {"DSMM_OPS": "reference"}}
CASES = {
    "-".join(case): case for case in itertools.product(KINDS, OPS, ("fp32", "bf16"), ("1", "2"))
}  # name: kind, operators, precision, ranks
FILES = ("*.safetensors", "*.bin", "*.idx", "scores.json")


def record(tree: Path, only: str) -> dict[str, dict[str, str]]:
    """{case: {file below the workdir: SHA-256}} of a checkout."""
    found = {}
    for name in (name for name in CASES if only in name):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{tree}: {name}", file=sys.stderr)
            found[name] = _run(tree.resolve(), Path(folder), *CASES[name])
    return found


def _run(tree: Path, folder: Path, kind: str, ops: str, precision: str, ranks: str) -> dict[str, str]:
    changed = [*KINDS[kind], *(DECODER if kind == "llama" else []), f"engine.precision={precision}"]
    command = ["run", make_world(folder), "--ranks", ranks, "adapt.depth_schedule=[]", "finetune.seeds=1", *changed]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'examples'}", "OMP_NUM_THREADS": "1", **OPS[ops]}
    process = [sys.executable, "-m", "ds_minimodel", *command]
    done = subprocess.run(process, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"{tree}: {kind} {ops} {precision} on {ranks} ranks ended with {done.returncode}\n{done.stderr[-2000:]}"
        )
    workdir = folder / "run"
    paths = [path for pattern in FILES for path in workdir.rglob(pattern) if "report" not in path.parts]
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    hashes |= {path: _hash_of_losses(path) for path in workdir.rglob("metrics.jsonl")}
    return {str(path.relative_to(workdir)): hashes[path] for path in sorted(hashes)}


def _hash_of_losses(path: Path) -> str:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [[record["step"], *(record[key] for key in sorted(record) if "loss" in key)] for record in records]
    return hashlib.sha256(json.dumps(losses).encode()).hexdigest()


def differences(here: dict[str, dict[str, str]], there: dict[str, dict[str, str]]) -> list[str]:
    """A line for each file that only one record has, or that differs; of the cases that both have."""
    lines = []
    for case in sorted(here.keys() & there.keys()):
        for file in sorted(here[case].keys() | there[case].keys()):
            hashes = here[case].get(file), there[case].get(file)
            if hashes[0] != hashes[1]:
                what = "differs" if all(hashes) else "only here" if hashes[0] else "only there"
                lines.append(f"{case}: {file}: {what}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, or a file that --save has written")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the record of this checkout")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose names hold this")
    arguments = parser.parse_args()
    if not (arguments.other or arguments.save):
        parser.error("name another checkout or a record, or --save FILE")
    here = record(ROOT, arguments.only)
    if arguments.save:
        arguments.save.write_text(json.dumps(here, indent=1))
    if arguments.other:
        is_file = arguments.other.is_file()
        there = json.loads(arguments.other.read_text()) if is_file else record(arguments.other, arguments.only)
        lines = differences(here, there)
        compared = sum(len(here[case]) for case in here.keys() & there.keys())
        print(*lines, f"{compared} files compared, {len(lines)} differ", sep="\n")
        sys.exit(bool(lines) or not compared)


if __name__ == "__main__":
    main()
