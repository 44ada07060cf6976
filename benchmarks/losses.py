"""Losses of ten steps in fp32 of an encoder, a decoder whose heads share keys, and one with
windows:

    python -m benchmarks.losses FILE            # writes them, or compares with those that are there

The first machine writes, such as a CPU; the next, such as a GPU with TF32 off, fails where a loss
is further away than 1e-4, or where its own second run has other bits under engine.deterministic.
"""

import json
import sys
from pathlib import Path

from benchmarks.training import losses, start

STEPS = 10
TOLERANCE = 1e-4
SIZES = "num_layers: 4, hidden_size: 128, num_heads: 4, ffn_size: 256, max_positions: 512"
SECTIONS = [
    "pretrain={lr: 1.0e-3, warmup_steps: 1}",
    "build_mini={}",
    "adapt={}",
    "mini={depth: 2, new_layers: 1}",
]
MODELS = {
    "roberta": f"model={{kind: roberta, {SIZES}}}",
    "llama": f"model={{kind: llama, num_kv_heads: 2, {SIZES}}}",
    "gemma3": f"model={{kind: gemma3, num_kv_heads: 1, {SIZES}}}",
}


def found() -> dict[str, list[float]]:
    """The losses of each model."""
    values = {}
    for name, model in MODELS.items():
        overrides = [model, *SECTIONS, "tokenizer.vocab_size=1000", "engine.deterministic=true"]
        sizes = {"step": "pretrain", "tokens": 2048, "seq_length": 192, "shortest": None}
        start("ds_minimodel", "paper", overrides, "fp32", 1, **sizes)
        values[name] = losses(STEPS)
    return values


def main(path: Path) -> int:
    """1 where they differ from those of the file, or from run to run."""
    first = found()
    if not path.exists():
        path.write_text(json.dumps(first))
        return 0
    second = found()
    print(
        json.dumps(first),
        "the same bits twice" if first == second else "OTHER BITS IN THE SECOND RUN",
    )
    expected = json.loads(path.read_text())
    furthest = {
        name: max(abs(a - b) for a, b in zip(first[name], expected[name], strict=True))
        for name in MODELS
    }
    print("furthest from the other machine:", furthest)
    return int(first != second or max(furthest.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
