"""What a quickstart's scores are above: the most frequent topic, and words in common with the
English training texts.

python scripts/baselines.py WORKDIR [SAMPLE]       SAMPLE: fetch-sample's folder, data/sample
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean

Rows = list[dict[str, str]]


def words(row: dict[str, str]) -> set[str]:
    return set(re.findall(r"\w+", row["text"].lower()))


def most_frequent(train: Rows, test: Rows) -> float:
    """Percent of the test rows that have the training rows' most frequent label."""
    (label, _), *_ = Counter(row["label"] for row in train).most_common(1)
    return 100 * fmean(row["label"] == label for row in test)


def words_in_common(train: Rows, test: Rows) -> float:
    """Percent of the test rows whose label has the nearest centroid by TF-IDF (cosine)."""
    rarity = {
        word: math.log(len(train) / n)
        for word, n in Counter(w for row in train for w in words(row)).items()
    }
    centroids: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        own = words(row)
        norm = math.sqrt(sum(rarity[word] ** 2 for word in own)) or 1.0
        centroids[row["label"]].update({word: rarity[word] / norm for word in own})  # type: ignore[arg-type]
    lengths = {
        label: math.sqrt(sum(value**2 for value in own.values())) or 1.0
        for label, own in centroids.items()
    }

    def nearest(row: dict[str, str]) -> str:
        own = {word: rarity[word] for word in words(row) if word in rarity}
        near = {
            label: sum(own[w] * of[w] for w in own) / lengths[label]
            for label, of in centroids.items()
        }
        return max(near, key=near.__getitem__)

    return 100 * fmean(nearest(row) == row["label"] for row in test)


def said(workdir: Path, sample: Path) -> str:
    """The systems' last scores, means over seeds with the 95 % interval of so many test rows, and
    what lies below.
    """
    read = (sample / "tasks/topic" / name for name in ("train.en.jsonl", "test.de.jsonl"))
    train, test = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in read
    )
    scores = [
        row
        for row in json.loads((workdir / "report/scores.json").read_text("utf-8"))
        if row["language"] == "de"
    ]
    last = max(row["step"] for row in scores)
    below = {
        "words in common": words_in_common(train, test),
        "the most frequent topic": most_frequent(train, test),
    }
    parts = []
    missing = []
    scores = [row for row in scores if row["step"] == last]
    for system in dict.fromkeys(row["system"] for row in scores):
        score = fmean(row["score"] for row in scores if row["system"] == system)
        interval = 1.96 * math.sqrt(score * (100 - score) / len(test))
        parts.append(f"{system} {score:.1f} ± {interval:.1f}")
        missing += [system] * (score - interval <= max(below.values()))
    parts += [f"{name} {score:.1f}" for name, score in below.items()]
    verdict = (
        f"{', '.join(missing)}: not above these two"
        if missing
        else "every system is above these two"
    )
    return f"German topics, % right: {', '.join(parts)}: {verdict} by more than its 95 % interval."


if __name__ == "__main__":
    print(said(Path(sys.argv[1]), Path(*(sys.argv[2:] or ["data/sample"]))))
