"""Classification of sentence pairs: XNLI's, MultiNLI's and PAWS-X's tables, `<s>A</s></s>B</s>`, accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from ds_minimodel.tasks.classification import Classification
from ds_minimodel.tasks.kind import References, TaskSettings
from ds_minimodel.tasks.tables import MULTINLI, PAIR, PAWSX, XNLI, XNLI_TRAIN, Records


class Pair(Classification):
    """One label for each pair of sentences."""

    name = "pair"
    fields = ("sentence1", "sentence2")
    roles = frozenset({"sentence1", "sentence2", "label", "language"})
    known_forms = (PAWSX, XNLI, MULTINLI, XNLI_TRAIN, PAIR)

    def least_length(self, task: TaskSettings) -> int:
        return 6

    def _references(self, train: Records, tests: Mapping[str, Records]) -> References:
        """Also the accuracy by how many words the two sentences share."""
        from ds_minimodel.tasks import references

        found = super()._references(train, tests)
        pairs = {name: (_pairs(records), records.targets.tolist()) for name, records in tests.items()}
        found["overlap"] = references.overlap_accuracies(_pairs(train), train.targets.tolist(), pairs)
        return found


def _pairs(records: Records) -> list[tuple[str, str]]:
    first, second = records.texts
    return list(zip(first, second, strict=True))
