"""Labelled tables: what their columns are called, and their rows as records.

The columns have the official files' forms, or a user's own names.
"""

import functools
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.text.reader import read_rows
from ds_minimodel.text.rows import Rows, rows_of_table, text_field


@dataclass(frozen=True)
class Columns:
    """One form of table.

    texts: the one or two columns of text. label: the column of labels. language: the column that
    says a row's language, in files that mix them. spellings: {another spelling: label}. left_out:
    labels whose rows are no examples; no_text: texts whose rows are none. header: all columns in
    their order, for a form that is told apart by them.
    """

    texts: tuple[str, ...]
    label: str = "label"
    language: str | None = None
    spellings: dict[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    no_text: frozenset[str] = frozenset()
    header: tuple[str, ...] | None = None

    @property
    def names(self) -> list[str]:
        """The columns that it is told by."""
        return [*(self.header or (*self.texts, self.label, *filter(None, [self.language])))]

    def fits(self, header: Collection[str]) -> bool:
        return self.names == [*header] if self.header else {*self.names} <= {*header}


_SPELLINGS = {
    "contradictory": "contradiction"
}  # in XNLI's translated training files (facebookresearch/XNLI#11)
_MISSING = "<NA> NA N/A n/a #N/A NaN nan -NaN -nan NULL null None".split()  # pandas' words
SENTENCE = Columns(("text",))
PAIR = Columns(("sentence1", "sentence2"))
XNLI = Columns(("sentence1", "sentence2"), "gold_label", "language", _SPELLINGS)
MULTINLI = Columns(("sentence1", "sentence2"), "gold_label", None, _SPELLINGS)
XNLI_TRAIN = Columns(("premise", "hypo"), "label", None, _SPELLINGS)
# Pairs that were not translated are blank or "NS" (google-research-datasets/paws#4).
PAWSX = Columns(
    ("sentence1", "sentence2"),
    left_out=frozenset(("", "NS")),
    no_text=frozenset(("", "NS")),
    header=("id", "sentence1", "sentence2", "label"),
)


def recognise(forms: Sequence[Columns], header: Collection[str], where: str) -> Columns:
    """The first of `forms` that a table with these columns has; UserError where it has none."""
    if fitting := next((form for form in forms if form.fits(header)), None):
        return fitting
    if len(forms) == 1:
        return forms[0]  # whoever reads it names the column that is missing
    known = "; ".join(", ".join(form.names) for form in forms if not form.header)
    raise UserError(
        f"{where}: no known set of columns ({known}); there are: "
        f"{', '.join(map(str, header)) or 'none'}; name them in the recipe, for example "
        "columns: {sentence1: premise, sentence2: hypothesis, label: gold}"
    )


# --- Rows as records ---


@dataclass(frozen=True)
class Records:
    """Labelled sentences or pairs: one list of N texts a column, targets (N,) int64 into
    `labels`.
    """

    texts: tuple[list[str], ...]
    targets: np.ndarray
    labels: tuple[str, ...]


def read_table(
    path: str | Path,
    forms: Sequence[Columns],
    labels: Sequence[str] | None = None,
    language: str | None = None,
) -> Records:
    """Records of a file of rows (reader.py), or of a .txt with tabs.

    forms: what its columns may be called; the first row decides. labels: the task's labels in order
    of their ids; where None, those of this file, sorted. Labels are matched by name, numbers by
    their digits; rows without one are left out, and how many is said. language: of the rows that
    are kept, in a file that mixes languages. Raises UserError with file and line where something is
    missing, damaged or not of the task.
    """
    columns: Columns | None = None
    examples: list[tuple[str, list[str], str]] = []  # (where it is, texts, label)
    for where, row in rows_of_file(
        path, dict.fromkeys(name for form in forms for name in form.names)
    ):
        columns = columns or recognise(forms, row, where)
        if columns.language and text_field(row, columns.language, where) != language:
            continue
        texts = [text_field(row, name, where) for name in columns.texts]
        if any(text.strip() in columns.no_text for text in texts):
            continue
        name = _label(row, columns, where)
        if name not in columns.left_out:
            examples.append((where, texts, name))
    missing = _no_labels({name for *_, name in examples}, labels)
    labelled = [example for example in examples if example[2] not in missing]
    if len(labelled) < len(examples):
        _say(
            f"{path}: {len(examples) - len(labelled):,} of {len(examples):,} rows are left out, "
            "labelled "
            f"{' or '.join(missing)}, which is no label unless the recipe's `labels` names it"
        )
    if not (examples := labelled):
        of_language = f" in '{language}'" if columns and columns.language else ""
        raise UserError(f"{path}: no examples{of_language}; a task needs some")
    names = tuple(sorted({name for *_, name in examples}) if labels is None else labels)
    ids = {name: number for number, name in enumerate(names)}
    for where, _, name in examples:
        if name not in ids:
            raise UserError(
                f"{where}: label '{name}' is not one of the task's ({', '.join(names)}); "
                "the recipe's `labels` can name more than the training file has"
            )
    by_column = tuple(
        list(column) for column in zip(*(texts for _, texts, _ in examples), strict=True)
    )
    return Records(by_column, np.array([ids[name] for *_, name in examples], dtype=np.int64), names)


def _no_labels(names: Collection[str], labels: Sequence[str] | None) -> list[str]:
    """Which of the labels `names` say that a row has none, as MultiNLI's and SNLI's without a
    majority, in integers -1; and as what pandas writes or reads as missing.

    labels: the task's, of which none is one; where None, neither are "-" beside "+", nor -1 beside
    1 without 0.
    """
    opposite = dict.fromkeys(_MISSING, False)
    opposite |= {"-": "+" in names, "-1": "1" in names and "0" not in names}
    return [
        name
        for name in opposite
        if name in names and not (opposite[name] if labels is None else name in labels)
    ]


@functools.cache  # tables are read again and again
def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def rows_of_file(path: str | Path, columns: Iterable[str]) -> Rows:
    """The rows of a file, where one is and {column: value}; `columns` are those that are read of a
    Parquet file.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; check the path")
    if Path(path).suffix.lower() == ".txt":  # MultiNLI's
        return rows_of_table([Path(path).read_bytes()], Path(path), ".tsv")
    return read_rows([path], [*columns])


def _label(row: Mapping[str, object], columns: Columns, where: str) -> str:
    value = row.get(columns.label)
    if isinstance(value, (bool, int)):
        name = json.dumps(value)
    else:
        name = text_field(row, columns.label, where).strip()
    if not name and name not in columns.left_out:
        raise UserError(f"{where}: the label '{columns.label}' is empty")
    return columns.spellings.get(name, name)
