"""Labelled tables: what their columns are called, and their rows as records.

The columns have the official files' forms, or a user's own names.
"""

import functools
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.text.reader import read_rows
from ds_minimodel.text.rows import Rows, rows_of_table, text_field


@dataclass(frozen=True)
class Columns:
    """One form of table.

    texts: the one or two columns of text. label: the column of labels. language: the column that
    says a row's language, in files that mix them. spellings: {another spelling: label}. left_out:
    labels whose rows are no examples. no_text: texts whose rows are none. header: all columns in
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
        if self.header:
            return [*self.header]
        language = [self.language] if self.language else []
        return [*self.texts, self.label, *language]

    def fits(self, header: Collection[str]) -> bool:
        """Return whether a table with these columns has this form."""
        return self.names == [*header] if self.header else {*self.names} <= {*header}


# In XNLI's translated training files (facebookresearch/XNLI#11).
_SPELLINGS = {"contradictory": "contradiction"}
_MISSING = "<NA> NA N/A n/a #N/A NaN nan -NaN -nan NULL null None".split()  # pandas' words
SENTENCE = Columns(("text",))
PAIR = Columns(("sentence1", "sentence2"))
XNLI = Columns(
    ("sentence1", "sentence2"), label="gold_label", language="language", spellings=_SPELLINGS
)
MULTINLI = Columns(("sentence1", "sentence2"), label="gold_label", spellings=_SPELLINGS)
XNLI_TRAIN = Columns(("premise", "hypo"), spellings=_SPELLINGS)
# Pairs that were not translated are blank or "NS" (google-research-datasets/paws#4).
PAWSX = Columns(
    ("sentence1", "sentence2"),
    left_out=frozenset(("", "NS")),
    no_text=frozenset(("", "NS")),
    header=("id", "sentence1", "sentence2", "label"),
)


def recognise(forms: Sequence[Columns], header: Collection[str], where: str) -> Columns:
    """Return the first of `forms` that a table with these columns has; UserError where it has
    none.
    """
    if fitting := next((form for form in forms if form.fits(header)), None):
        return fitting
    # Whoever reads the only form names the column that is missing.
    if len(forms) == 1:
        return forms[0]
    known = "; ".join(", ".join(form.names) for form in forms if not form.header)
    raise UserError(
        f"{where}: no known set of columns ({known}); there are: "
        f"{', '.join(map(str, header)) or 'none'}; name them in the recipe, for example "
        "columns: {sentence1: premise, sentence2: hypothesis, label: gold}"
    )


# --- Rows as records ---


@dataclass(frozen=True)
class Records:
    """Labelled sentences or pairs.

    texts: one list of N texts a column. targets: (N,) int64, indices into `labels`.
    """

    texts: tuple[list[str], ...]
    targets: np.ndarray
    labels: tuple[str, ...]


class _Row(NamedTuple):
    """An example, and where it is, as messages say it."""

    where: str
    texts: list[str]
    label: str


def read_table(
    path: str | Path,
    forms: Sequence[Columns],
    labels: Sequence[str] | None = None,
    language: str | None = None,
) -> Records:
    """Read the records of a file of rows (reader.py), or of a .txt with tabs.

    Labels are matched by name, numbers by their digits; rows without one are left out, and how many
    is said.

    Args:
        path: of the file.
        forms: what its columns may be called; the first row decides.
        labels: the task's, in order of their ids; where None, those of this file, sorted.
        language: of the rows that are read, in a file that mixes languages.

    Raises:
        UserError: Something is missing, damaged or not of the task; the message has file and line.
    """
    form, rows = _read_examples(path, forms, language)
    missing = _no_labels({row.label for row in rows}, labels)
    labelled = [row for row in rows if row.label not in missing]
    if len(labelled) < len(rows):
        _say(
            f"{path}: {len(rows) - len(labelled):,} of {len(rows):,} rows are left out, labelled "
            f"{' or '.join(missing)}, which is no label unless the recipe's `labels` names it"
        )
    if not labelled:
        of_language = f" in '{language}'" if form and form.language else ""
        raise UserError(f"{path}: no examples{of_language}; a task needs some")
    names = sorted({row.label for row in labelled}) if labels is None else labels
    ids = {name: id for id, name in enumerate(names)}
    for row in labelled:
        if row.label not in ids:
            raise UserError(
                f"{row.where}: label '{row.label}' is not one of the task's ({', '.join(names)}); "
                "the recipe's `labels` can name more than the training file has"
            )
    columns = zip(*(row.texts for row in labelled), strict=True)
    targets = np.array([ids[row.label] for row in labelled], dtype=np.int64)
    return Records(tuple(list(column) for column in columns), targets, tuple(names))


def _read_examples(
    path: str | Path, forms: Sequence[Columns], language: str | None
) -> tuple[Columns | None, list[_Row]]:
    """Read the rows that are examples of the language; also return the form of their table."""
    columns: Columns | None = None
    examples: list[_Row] = []
    names = dict.fromkeys(name for form in forms for name in form.names)
    for where, row in rows_of_file(path, names):
        columns = columns or recognise(forms, row, where)
        if columns.language and text_field(row, columns.language, where) != language:
            continue
        texts = [text_field(row, name, where) for name in columns.texts]
        if any(text.strip() in columns.no_text for text in texts):
            continue
        label = _label(row, columns, where)
        if label not in columns.left_out:
            examples.append(_Row(where, texts, label))
    return columns, examples


def _no_labels(names: Collection[str], labels: Sequence[str] | None) -> list[str]:
    """Return which of the labels `names` say that a row has none.

    They are what pandas writes or reads as missing, and MultiNLI's and SNLI's sign for no majority,
    in integers -1. labels: the task's, of which none is such a sign; where None, neither are "-"
    beside "+", nor -1 beside 1 without 0.
    """
    signs = [*_MISSING, "-", "-1"]
    if labels is not None:
        return [sign for sign in signs if sign in names and sign not in labels]
    has_opposite = {"-": "+" in names, "-1": "1" in names and "0" not in names}
    return [sign for sign in signs if sign in names and not has_opposite.get(sign, False)]


# Tables are read again and again.
@functools.cache
def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def rows_of_file(path: str | Path, columns: Iterable[str]) -> Rows:
    """Return the rows of a file, where one is and {column: value}; `columns` are those that are
    read of a Parquet file.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the path")
    # MultiNLI's files have this name.
    if path.suffix.lower() == ".txt":
        return rows_of_table([path.read_bytes()], path, ".tsv")
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
