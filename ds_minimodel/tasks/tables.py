"""Labelled tables in JSONL, CSV and TSV files: what their columns are called, and their rows as records.

The columns have the official files' forms, or a user's own names.
"""

import functools
import io
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.text.rows import JSON_LINES, TABLES, json_object, table_rows, text_field


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
        """The columns that are read."""
        return [*self.texts, self.label, *([self.language] if self.language else [])]

    def fits(self, header: Collection[str]) -> bool:
        return list(self.header) == list(header) if self.header else set(self.names) <= set(header)


_SPELLINGS = {"contradictory": "contradiction"}  # in XNLI's translated training files (facebookresearch/XNLI#11)
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
    fitting = [form for form in forms if form.fits(header)]
    if fitting:
        return fitting[0]
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
    """Labelled sentences or pairs: one list of N texts a column, targets (N,) int64 into `labels`."""

    texts: tuple[list[str], ...]
    targets: np.ndarray
    labels: tuple[str, ...]


def read_table(
    path: str | Path, forms: Sequence[Columns], labels: Sequence[str] | None = None, language: str | None = None
) -> Records:
    """Records of a .jsonl, .csv, .tsv or .txt (tab-separated) file with named columns.

    forms: what its columns may be called; the first row decides. labels: the task's labels
    in order of their ids; where None, those of this file, sorted. Labels are matched by name, numbers
    by their digits; rows without one are left out, and how many is said. language: of the rows that are kept, in a file
    that mixes languages.
    Raises UserError with file and line where something is missing, damaged or not of the task.
    """
    columns: Columns | None = None
    examples: list[tuple[int, list[str], str]] = []  # (line, texts, label)
    for line, row in rows_of(path):
        where = f"{path}:{line}"
        columns = columns or recognise(forms, row, where)
        if columns.language and text_field(row, columns.language, where) != language:
            continue
        texts = [text_field(row, name, where) for name in columns.texts]
        if any(text.strip() in columns.no_text for text in texts):
            continue
        name = _label(row, columns, where)
        if name not in columns.left_out:
            examples.append((line, texts, name))
    missing = _no_labels({name for *_, name in examples}, labels)
    labelled = [example for example in examples if example[2] not in missing]
    if len(labelled) < len(examples):
        _say(
            f"{path}: {len(examples) - len(labelled):,} of {len(examples):,} rows are left out, labelled "
            f"{' or '.join(missing)}, which is no label unless the recipe's `labels` names it"
        )
    if not (examples := labelled):
        of_language = f" in '{language}'" if columns and columns.language else ""
        raise UserError(f"{path}: no examples{of_language}; a task needs some")
    names = tuple(sorted({name for *_, name in examples}) if labels is None else labels)
    ids = {name: number for number, name in enumerate(names)}
    for line, _, name in examples:
        if name not in ids:
            raise UserError(
                f"{path}:{line}: label '{name}' is not one of the task's ({', '.join(names)}); "
                "the recipe's `labels` can name more than the training file has"
            )
    by_column = tuple(list(column) for column in zip(*(texts for _, texts, _ in examples), strict=True))
    return Records(by_column, np.array([ids[name] for *_, name in examples], dtype=np.int64), names)


def _no_labels(names: Collection[str], labels: Sequence[str] | None) -> list[str]:
    """Which of the labels `names` say that a row has none, as MultiNLI's and SNLI's without a majority, in integers -1.

    labels: the task's, of which none is one; where None, neither are "-" beside "+", nor -1 beside 1 without 0.
    """
    opposite = {"-": "+" in names, "-1": "1" in names and "0" not in names}
    return [name for name in opposite if name in names and not (opposite[name] if labels is None else name in labels)]


@functools.cache  # tables are read again and again
def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def rows_of(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, {column: value}) of each row; values of .csv and .tsv files are text."""
    form = Path(path).suffix.lower()
    if form not in (*JSON_LINES, *TABLES, ".txt"):
        raise UserError(
            f"{path}: the name must end in what the table is: {', '.join((*JSON_LINES, *TABLES))}, .txt (tabs)"
        )
    text = read_text(path)
    if form in JSON_LINES:
        lines = enumerate(text.split("\n"), 1)  # splitlines would also cut at U+2028 and U+0085
        yield from ((line, json_object(content, path, line)) for line, content in lines if content.strip())
    else:
        yield from table_rows(io.StringIO(text, newline=""), path, ".tsv" if form == ".txt" else form)


def read_text(path: str | Path) -> str:
    """The whole of a UTF-8 file (a byte order mark is dropped); UserError where that cannot be."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; check the path")
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{byte:02x}); convert the file") from None


def _label(row: Mapping[str, object], columns: Columns, where: str) -> str:
    value = row.get(columns.label)
    if isinstance(value, (bool, int)):
        name = json.dumps(value)
    else:
        name = text_field(row, columns.label, where).strip()
    if not name and name not in columns.left_out:
        raise UserError(f"{where}: the label '{columns.label}' is empty")
    return columns.spellings.get(name, name)
