"""What a page of text costs a decoder: tokens, and the time and memory to read and write them.

    python -m benchmarks.page TEXT MODEL...

Each MODEL, a folder of transformers or a GGUF file, reads the first 4,000 bytes of TEXT at once.
After them it writes 64 tokens, one after the other, by whose time that of a whole page is told.
Seconds are of the process's CPU time; memory is that of keys and values after the page.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ds_minimodel.artifacts.base import keep_vocabulary, module_of
from ds_minimodel.evaluation.bits import beginning_of
from ds_minimodel.evaluation.comparison import PAGE_BYTES
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.ops import gpu
from ds_minimodel.ops.precision import decoder_dtype

WRITTEN = 64  # tokens


def seconds_of(action: Callable[[], object]) -> float:
    """Return the seconds of CPU time that an action takes."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    page = "\n".join(beginning_of([options.text], PAGE_BYTES).texts)
    for model in options.models:
        with tempfile.TemporaryDirectory() as scratch:
            keep_vocabulary(model, Path(scratch) / "vocabulary")
            tokenizer = tokenizer_of(Path(scratch) / "vocabulary")
        module = module_of(model, decoder_dtype(gpu.device()))
        ids_1S = torch.tensor([tokenizer(page)["input_ids"]])
        count = ids_1S.shape[1]
        cache = DynamicCache()

        def read(module: Any = module, ids_1S: Tensor = ids_1S, cache: Any = cache) -> None:
            with torch.inference_mode():
                module(ids_1S, past_key_values=cache, logits_to_keep=1)

        def write(module: Any = module, cache: Any = cache) -> None:
            ids_11 = torch.tensor([[0]])
            with torch.inference_mode():
                for _ in range(WRITTEN):
                    scores_1SV = module(ids_11, past_key_values=cache).logits
                    ids_11 = scores_1SV[:, -1].argmax(-1, keepdim=True)

        reading = seconds_of(read)
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        writing = seconds_of(write) / WRITTEN * count
        print(
            f"{model}: {count} tokens, read in {reading:.2f} s, written in {writing:.1f} s, "
            f"{size / 1e6:.1f} MB of keys and values"
        )


if __name__ == "__main__":
    main()
