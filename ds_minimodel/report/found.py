"""What an embedding model finds: untouched, with a language that is aligned, and after training."""

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter

from ds_minimodel.evaluation.changes import Changes
from ds_minimodel.report.curves import OF_SOURCE, Row, RunResults, name_of
from ds_minimodel.report.render import Block, Cell, CellRow, Facts, Table

_SHOWN = ("recall_at_1", "recall_at_10", "mrr")
_BACK = "back_"


def retrieval_tables(run: RunResults) -> list[Table]:
    """Return a table for each system, task and language of retrieval, both ways."""
    rows = [row for row in run.target_scores if _SHOWN[0] in row]
    by_task = itemgetter("system", "task", "language")
    groups = groupby(sorted(rows, key=by_task), key=by_task)
    return [_table(run, [*group]) for _, group in groups]


def _table(run: RunResults, rows: list[Row]) -> Table:
    """Return the table of a system, task and language, whose rows these are."""
    system = rows[0]["system"]
    language = rows[0]["language"]
    source = run.recipe.languages.source
    ways = {"": f"{language} → {source}", _BACK: f"{source} → {language}"}
    columns = ["", *(f"{way}, {of}" for way in ways.values() for of in ("@1", "@10", "MRR"))]
    rows = sorted(rows, key=itemgetter("step"))
    shown: list[CellRow] = []
    if OF_SOURCE + _SHOWN[0] in rows[0]:
        shown.append(["untouched", *_cells(rows[0], OF_SOURCE)])
    start = "aligned" if run.recipe.adapt.aligns else "as it starts"
    for row in rows:
        name = f"after {row['step']:,} steps" if row["step"] else start
        shown.append([name, *_cells(row)])
    documents = int(rows[0]["candidates"])
    queries = int(rows[0][f"{_BACK}candidates"])
    among = f"{documents:,}" if documents == queries else f"{documents:,} and {queries:,}"
    note = (
        f"Percent of texts whose partner is nearest (@1) or among the ten nearest (@10) of "
        f"{among}, and the mean reciprocal rank (MRR). In brackets: intervals of 95 %."
    )
    return Table(f"{rows[0]['task']}, {name_of(system)}", columns, shown, notes=[note])


def _cells(row: Mapping[str, float], prefix: str = "") -> list[Cell]:
    cells = []
    for beginning in (prefix, f"{prefix}{_BACK}"):
        low = row[f"{beginning}low"]
        high = row[f"{beginning}high"]
        for name in _SHOWN:
            detail = f"({low:.1f}–{high:.1f})" if name == _SHOWN[0] else ""
            cells.append(Cell(f"{row[beginning + name]:.1f}", detail))
    return cells


def changes_blocks(changes: Changes, source: str, language: str) -> list[Block]:
    """Show what a model's new tokens are, what its texts find, and what the source's have lost."""
    cut = changes.cut_otherwise
    count = changes.source_lines
    same = "their vectors are equal to the bit"
    if changes.same_changed:
        same = f"numbers of their vectors differ by {changes.same_changed:.2g} at most"
    if cut:
        kept = (
            f"{count - cut:,} of {count:,} are split into the same tokens, and {same}; numbers of "
            f"the others' ({100 * cut / count:.1f} %) differ by {changes.others_changed:.2g} at "
            "most"
        )
    else:
        kept = f"all {count:,} that were looked at are split into the same tokens, and {same}"
    tokens = (
        f"{changes.tokens_before:.1f} tokens a line before, {changes.tokens_after:.1f} after, of "
        f"which {100 * changes.old_share:.0f} % are {source}'s own and keep their embeddings"
    )
    facts = Facts({f"Lines of {source}": kept, f"Lines of {language}": tokens})
    findings: list[CellRow] = [
        [found.text, _with_mark(found.before, found.right), _with_mark(found.after, found.right)]
        for found in changes.findings
    ]
    nearest = Table(
        "The nearest lines",
        ["Line", "before", "after"],
        findings,
        notes=["Searched among the lines of the first table; a line's own translation is marked."],
        of_text=True,
    )
    tokens_shown: list[CellRow] = [[new.token, ", ".join(new.nearest)] for new in changes.tokens]
    aligned = Table(
        "New tokens",
        ["Token", f"nearest tokens of {source} when it was aligned"],
        tokens_shown,
        notes=["Some of the most frequent. Good ones translate each other or occur together."],
        of_text=True,
    )
    return [facts, nearest, aligned]


def _with_mark(text: str, right: str) -> Cell:
    return Cell(text, "(right)" if text == right else "")
