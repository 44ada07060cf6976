"""A page as data (headings, facts, tables, figures), printed as Markdown or as HTML that stands alone."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple


class Heading(NamedTuple):
    """Heading of a part of the page; the page's own title has level 1."""

    text: str
    level: int = 2


class Facts(NamedTuple):
    """Facts with a label each."""

    by_label: Mapping[str, str]


class Notes(NamedTuple):
    """Notes, a line each."""

    lines: list[str]


class Figure(NamedTuple):
    """PNG with two pixels for each pixel of the page; `name` is its file beside the page."""

    name: str
    png: bytes
    caption: str


class Cell(NamedTuple):
    """Entry of a table: its text, what qualifies it (± or bounds), and whether it is the best of its column."""

    text: str
    detail: str = ""
    best: bool = False


EMPTY = Cell("–")


@dataclass(frozen=True)
class Table:
    """Table of cells; each row holds one for each of `columns`. `references` are rows that the others compare with."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    references: Sequence[Sequence[Cell]] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)


Block = Heading | Facts | Notes | Figure | Table


_MANY_COLUMNS = 9  # wider tables print what qualifies an entry below it, not beside it
_STYLE = """
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c2126; background: #fff;
       max-width: 78rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid #d5dade; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .9rem; }
dt { color: #59636e; }
dd { margin: 0; }
figure { margin: 1.2rem 0 1.8rem; }
figure img { max-width: 100%; height: auto; }
figcaption, .note { color: #59636e; font-size: .85rem; max-width: 56rem; margin: .35rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; white-space: nowrap; }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { border-top: 2px solid #1c2126; border-bottom: 1px solid #1c2126; font-weight: 600; }
tbody:last-of-type tr:last-child td { border-bottom: 2px solid #1c2126; }
tbody.references tr:first-child td { border-top: 1px solid #b4bcc4; }
tbody.references td { color: #59636e; }
td small { color: #59636e; }
table.many td { vertical-align: top; line-height: 1.25; padding-left: .3rem; }
table.many td small { display: block; }
"""


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """Page as Markdown; figures are files beside it."""
    lines = [f"# {title}", ""]
    for block in blocks:
        if isinstance(block, Heading):
            lines += [f"{'#' * block.level} {_markdown(block.text)}", ""]
        elif isinstance(block, Facts):
            facts = block.by_label.items()
            lines += [*(f"- **{_markdown(label)}**: {_markdown(text)}" for label, text in facts), ""]
        elif isinstance(block, Notes):
            lines += [*(f"- {_markdown(line)}" for line in block.lines), ""]
        elif isinstance(block, Figure):
            lines += [f"![{_markdown(block.caption)}]({block.name})", "", f"*{_markdown(block.caption)}*", ""]
        else:
            lines += _markdown_table(block)
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def entry(cell: Cell) -> str:
        text = _markdown(cell.text)
        return " ".join(filter(None, [f"**{text}**" if cell.best else text, _markdown(cell.detail)]))

    return [
        f"**{_markdown(table.title)}**",
        "",
        line(map(_markdown, table.columns)),
        line(["---"] + ["---:"] * (len(table.columns) - 1)),
        *(line(map(entry, row)) for row in [*table.rows, *table.references]),
        "",
        *(line for note in table.notes for line in (_markdown(note), "")),
    ]


def _markdown(text: str) -> str:
    """`text` with Markdown's own marks escaped; an underscore inside a word is none."""
    for mark in "\\|*<`":
        text = text.replace(mark, f"\\{mark}")
    return text


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """Page as one HTML file with its figures inside."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
    if isinstance(block, Facts):
        facts = "\n".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in block.by_label.items())
        return f"<dl>\n{facts}\n</dl>"
    if isinstance(block, Notes):
        return "\n".join(f'<p class="note">{escape(line)}</p>' for line in block.lines)
    if isinstance(block, Figure):
        data, caption = base64.b64encode(block.png).decode(), escape(block.caption)
        width = int.from_bytes(block.png[16:20], "big") // 2  # PNG keeps its width there
        return (
            f'<figure><img alt="{caption}" width="{width}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return _html_table(block)


def _html_table(table: Table) -> str:
    def entry(cell: Cell) -> str:
        text = f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text)
        return f"<td>{text} <small>{escape(cell.detail)}</small></td>" if cell.detail else f"<td>{text}</td>"

    def body(rows: Sequence[Sequence[Cell]], attribute: str = "") -> str:
        lines = "\n".join(f"<tr>{''.join(map(entry, row))}</tr>" for row in rows)
        return f"<tbody{attribute}>\n{lines}\n</tbody>\n" if rows else ""

    header = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    references, many = ' class="references"', ' class="many"' if len(table.columns) > _MANY_COLUMNS else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in table.notes)
    return (
        f'<div class="wide"><table{many}>\n<caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{header}</tr></thead>\n{body(table.rows)}{body(table.references, references)}"
        f"</table></div>\n{notes}"
    )
