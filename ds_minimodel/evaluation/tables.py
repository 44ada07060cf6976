"""Labelled tables: the names of their columns, and their rows as records.

The columns have the names of the official files, or those that a recipe gives.
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

    Attributes:
        texts: The one or two columns of text.
        label: The column of labels.
        language: The column that says a row's language, in files that mix languages.
        spellings: {another spelling: label}.
        left_out: Labels whose rows are no examples.
        no_text: Texts whose rows are no examples.
        header: All columns in their order, for a form that is recognised only by these.
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
        """The columns by which the form is recognised."""
        if self.header:
            return list(self.header)
        language = [self.language] if self.language else []
        return [*self.texts, self.label, *language]

    def fits(self, header: Collection[str]) -> bool:
        """Return whether a table with these columns has this form."""
        if self.header:
            return self.names == list(header)
        return {*self.names} <= {*header}


# In XNLI's translated training files (facebookresearch/XNLI#11).
_SPELLINGS = {"contradictory": "contradiction"}
_EXAMPLE = '{"text": "It rains.", "label": "weather"}'  # row of a table, for messages
# Words that pandas writes or reads for a missing value.
_MISSING = "<NA> NA N/A n/a #N/A NaN nan -NaN -nan NULL null None".split()
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
    """Return the first of `forms` that a table with these columns has.

    Where there is only one form, it is returned in any case: who reads the rows names the column
    that is missing.

    Raises:
        UserError: The table has none of several forms.
    """
    if fitting := next((form for form in forms if form.fits(header)), None):
        return fitting
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

    Attributes:
        texts: One list of N texts a column.
        targets: (N,) int64, indices into `labels`.
        labels: Names in the order of their ids.
    """

    texts: tuple[list[str], ...]
    targets: np.ndarray
    labels: tuple[str, ...]


class _Row(NamedTuple):
    """An example, and its place in words for messages."""

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

    Labels are matched by name, numbers by their digits. Rows without one are left out, and a line
    on standard error says how many.

    Args:
        path: Of the file.
        forms: Names that its columns may have; the first row decides.
        labels: The task's, in the order of their ids; None for those of this file, sorted.
        language: Of the rows that are read, in a file that mixes languages.

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
    """Return the form of a table, None where it has no rows, and its examples of the language."""
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
    """Return which of the labels `names` are signs that a row has no label.

    Such signs are what pandas writes or reads as missing, and MultiNLI's and SNLI's sign for no
    majority, "-" or in integers -1. None of the task's `labels` is one. Where these are None,
    neither are "-" beside "+", nor -1 beside 1 without 0.
    """
    signs = [*_MISSING, "-", "-1"]
    if labels is not None:
        return [sign for sign in signs if sign in names and sign not in labels]
    has_opposite = {"-": "+" in names, "-1": "1" in names and "0" not in names}
    return [sign for sign in signs if sign in names and not has_opposite.get(sign, False)]


@functools.cache
def _say(line: str) -> None:
    """Print a line once: tables are read again and again."""
    print(printable(line), file=sys.stderr)


def rows_of_file(path: str | Path, columns: Iterable[str]) -> Rows:
    """Return the rows of a file as (its place in words, {column: value}).

    Args:
        path: Of the file.
        columns: That are read of a Parquet file.

    Raises:
        UserError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the path")
    # MultiNLI's files have this name.
    if path.suffix.lower() == ".txt":
        return rows_of_table([path.read_bytes()], path, ".tsv")
    return read_rows([path], [*columns], _EXAMPLE)


def _label(row: Mapping[str, object], columns: Columns, where: str) -> str:
    value = row.get(columns.label)
    if isinstance(value, (bool, int)):
        name = json.dumps(value)
    else:
        name = text_field(row, columns.label, where).strip()
    if not name and name not in columns.left_out:
        raise UserError(f"{where}: the label '{columns.label}' is empty")
    return columns.spellings.get(name, name)
