"""How far one gets in a task without a language model, in percent.

    python scripts/references.py data/sample/tasks/topic/train.en.jsonl data/sample/tasks/topic/test.de.jsonl

By the most frequent label, and by that of the training text which shares most of its words.
"""

import json
import sys
from collections import Counter
from pathlib import Path


def read(path: str) -> list[tuple[set[str], str]]:
    """(words, label) of each line of a task's JSON lines."""
    rows = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    return [(set(row["text"].lower().split()), row["label"]) for row in rows]


def main() -> None:
    """Print both."""
    train, test = map(read, sys.argv[1:])
    ((majority, _),) = Counter(label for _, label in train).most_common(1)
    nearest = [
        max(train, key=lambda row: len(row[0] & words) / len(row[0] | words))[1]
        for words, _ in test
    ]
    for name, found in (("majority", [majority] * len(test)), ("words in common", nearest)):
        right = sum(own == label for own, (_, label) in zip(found, test, strict=True))
        print(f"{name} {100 * right / len(test):.1f}")


if __name__ == "__main__":
    main()
