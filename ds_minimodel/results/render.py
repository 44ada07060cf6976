"""A page as data (headings, facts, tables, plots), printed as Markdown, as HTML that stands alone, on a terminal."""

import base64
import textwrap
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


class Plot(NamedTuple):
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


Block = Heading | Facts | Notes | Plot | Table


_MANY_COLUMNS = 9  # wider tables print what qualifies an entry below it, not beside it
# Colours of the page in light and dark mode. All but `line` are of text: a contrast of 4.5 or more with the ground.
PALETTES = {
    "light": {"ground": "#ffffff", "text": "#1c2126", "quiet": "#59636e", "link": "#0b5cad", "line": "#b4bcc4"},
    "dark": {"ground": "#14181c", "text": "#e6e9ec", "quiet": "#a7b1bb", "link": "#7db8f5", "line": "#4a545e"},
}
_LIGHT, _DARK = (
    " ".join(f"--{name}: {color};" for name, color in PALETTES[mode].items()) for mode in ("light", "dark")
)
_STYLE = (
    f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
"""
    + """
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--text);
       background: var(--ground); max-width: 78rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h1, h2, dd, p { overflow-wrap: anywhere; }
a { color: var(--link); }
a, .wide { outline-offset: 2px; }
a:focus-visible, .wide:focus-visible { outline: 2px solid var(--link); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--ground); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1.2rem; padding: 0; font-size: .9rem; }
nav a { display: inline-block; padding: .3rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .9rem; }
dt { color: var(--quiet); }
dd { margin: 0; }
figure { margin: 1.2rem 0 1.8rem; }
figure img { max-width: 100%; height: auto; background: #fff; }
figcaption, .note { color: var(--quiet); font-size: .85rem; max-width: 56rem; margin: .35rem 0; }
.wide { overflow-x: auto; }
.title { font-size: .9rem; font-weight: 600; margin: 1rem 0 .4rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap; }
tbody th { font-weight: normal; }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--ground); }
thead th { border-top: 2px solid var(--text); border-bottom: 1px solid var(--text); font-weight: 600;
           white-space: normal; vertical-align: bottom; }
tbody:last-of-type tr:last-child > * { border-bottom: 2px solid var(--text); }
tbody.references tr:first-child > * { border-top: 1px solid var(--line); }
tbody.references th, tbody.references td, td small { color: var(--quiet); }
table.many td, table.many th { vertical-align: top; line-height: 1.25; padding-left: .3rem; }
table.many th:first-child { padding-left: 0; }
table.many td small { display: block; }
@media (max-width: 40rem) { body { padding: 1rem 1rem 3rem; } dl { display: block; } dd { margin: 0 0 .4rem; } }
"""
)


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
        elif isinstance(block, Plot):
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


def to_terminal(tables: Iterable[Table], width: int) -> str:
    """Tables with aligned columns, numbers to the right; what is wider than `width` goes on below."""
    lines: list[str] = []
    for table in tables:
        rows = [[" ".join(filter(None, cell[:2])) for cell in row] for row in [*table.rows, *table.references]]
        columns = [_aligned(column) for column in zip(table.columns, *rows, strict=True)] if rows else []
        num_names = len([name for name in table.columns[:2] if name in ("System", "Step")]) or 1  # of what a row is of
        names, others = columns[:num_names], columns[num_names:]
        lines += [table.title, ""]
        while others:
            used, taken = sum(len(column[0]) + 2 for column in names), 0
            while taken < len(others) and (not taken or used + len(others[taken][0]) <= width):
                used, taken = used + 2 + len(others[taken][0]), taken + 1
            lines += ["  ".join(line).rstrip() for line in zip(*names, *others[:taken], strict=True)] + [""]
            others = others[taken:]
        lines += [line for note in table.notes for line in (*textwrap.wrap(note, width), "")]
    return "\n".join(lines).rstrip("\n")


def _aligned(column: Sequence[str]) -> list[str]:
    """The entries of a column, its name first, each as wide as the widest."""
    align = str.rjust if any(text[:1].isdigit() for text in column[1:]) else str.ljust
    return [align(text, max(map(len, column))) for text in column]


def _markdown(text: str) -> str:
    """`text` with Markdown's own marks escaped; an underscore inside a word is none."""
    for mark in "\\|*<`":
        text = text.replace(mark, f"\\{mark}")
    return text


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """Page as one HTML file with its figures inside; what is too wide for a screen scrolls within the page."""
    blocks = list(blocks)
    body = "\n".join(_html(block, number) for number, block in enumerate(blocks))
    links = "\n".join(
        f'<li><a href="#b{number}">{escape(block.text)}</a></li>'
        for number, block in enumerate(blocks)
        if isinstance(block, Heading)
    )
    contents = f'<nav aria-label="Contents">\n<ul>\n{links}\n</ul>\n</nav>\n' if links else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#results">Skip to the results</a>\n'
        f'<h1>{escape(title)}</h1>\n{contents}<main id="results">\n{body}\n</main>\n</body>\n</html>\n'
    )


def _html(block: Block, number: int) -> str:
    """number: of the block on the page, for what refers to it."""
    if isinstance(block, Heading):
        return f'<h{block.level} id="b{number}">{escape(block.text)}</h{block.level}>'
    if isinstance(block, Facts):
        facts = "\n".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in block.by_label.items())
        return f"<dl>\n{facts}\n</dl>"
    if isinstance(block, Notes):
        return "\n".join(f'<p class="note">{escape(line)}</p>' for line in block.lines)
    if isinstance(block, Plot):
        data, caption = base64.b64encode(block.png).decode(), escape(block.caption)
        width = int.from_bytes(block.png[16:20], "big") // 2  # PNG keeps its width there
        return (
            f'<figure><img alt="{caption}" width="{width}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return _html_table(block, number)


def _scrolling(number: int) -> str:
    """Start of a region that scrolls sideways, by keyboard too, with the name that stands in block `number`."""
    return f'<div class="wide" role="region" tabindex="0" aria-labelledby="b{number}">'


def _html_table(table: Table, number: int) -> str:
    def entry(cell: Cell) -> str:
        text = f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text)
        return f"{text} <small>{escape(cell.detail)}</small>" if cell.detail else text

    def row(cells: Sequence[Cell]) -> str:
        first, *others = map(entry, cells)
        return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{other}</td>" for other in others)}</tr>'

    def body(rows: Sequence[Sequence[Cell]], attribute: str = "") -> str:
        lines = "\n".join(map(row, rows))
        return f"<tbody{attribute}>\n{lines}\n</tbody>\n" if rows else ""

    header = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    references, many = ' class="references"', ' class="many"' if len(table.columns) > _MANY_COLUMNS else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in table.notes)
    return (
        f'<p class="title" id="b{number}">{escape(table.title)}</p>\n'
        f'{_scrolling(number)}<table{many} aria-labelledby="b{number}">\n'
        f"<thead><tr>{header}</tr></thead>\n{body(table.rows)}{body(table.references, references)}"
        f"</table></div>\n{notes}"
    )
