"""Process of a contestant: calls functions of this package as they are asked for on standard input.

    python -m benchmarks.worker THREADS

Each contestant has a process of its own, so that environment, memory and what libraries change in
torch are its own. A line is [module, function, named arguments] as JSON, and so is the answer, a
line on standard output.
"""

import importlib
import json
import os
import sys

import torch


def main(threads: int) -> None:
    """Serve calls until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    torch.set_num_threads(threads)
    for line in sys.stdin:
        module, function, named = json.loads(line)
        print(json.dumps(getattr(importlib.import_module(module), function)(**named)), file=answers)


if __name__ == "__main__":
    main(int(sys.argv[1]))
