"""A page as data (headings, facts, tables, plots), printed as Markdown and as HTML in one file."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote


class Heading(NamedTuple):
    """Heading of a part of the page; the page's own title has level 1."""

    text: str
    level: int = 2


class Facts(NamedTuple):
    """Facts, each with a label."""

    by_label: Mapping[str, str]


class Findings(NamedTuple):
    """Sentences of what was found, a line each."""

    lines: Sequence[str]


class Plot(NamedTuple):
    """PNG with two pixels for each pixel of the page.

    Attributes:
        name: Of its file beside the page.
        png: Bytes of the file.
        caption: What it shows.
    """

    name: str
    png: bytes
    caption: str

    @property
    def width(self) -> int:
        """Width in pixels of the page."""
        # A PNG has its width in these bytes.
        return int.from_bytes(self.png[16:20], "big") // 2

    @property
    def base64(self) -> str:
        """The file as base64 text."""
        return base64.b64encode(self.png).decode()


class Cell(NamedTuple):
    """Entry of a table.

    Attributes:
        text: What it says.
        detail: What qualifies the text, such as ± or bounds.
        best: Whether it is the best of its column.
    """

    text: str
    detail: str = ""
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.detail}".rstrip()


EMPTY = Cell("–")
CellRow = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """Table; each row has an entry for each column.

    Attributes:
        title: Above it.
        columns: Their names.
        rows: Entries.
        references: Rows that the others compare with.
        notes: Sentences below it.
        of_text: Whether its entries are sentences, which stand below each other on narrow screens.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[CellRow]
    references: Sequence[CellRow] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)
    of_text: bool = False


Block = Heading | Facts | Findings | Plot | Table


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """Return a page as one HTML file with its figures inside.

    What is too wide for a screen scrolls within the page.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ds_minimodel.report", ".")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    template = environment.get_template("page.html.j2")
    by_kind = [(type(block).__name__, block) for block in blocks]
    return without_controls(template.render(title=title, blocks=by_kind))


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """Return a page as Markdown; figures are files beside it."""
    lines = [f"# {title}", ""]
    for block in blocks:
        match block:
            case Heading(text, level):
                lines += [f"{'#' * level} {escape_markdown(text)}", ""]
            case Facts(by_label):
                for name, text in by_label.items():
                    lines.append(f"- **{escape_markdown(name)}**: {escape_markdown(text)}")
                lines.append("")
            case Findings(sentences):
                lines += [*(f"- {escape_markdown(line)}" for line in sentences), ""]
            case Plot(name, _, caption):
                image = f"![{escape_markdown(caption, in_brackets=True)}]({quote(name)})"
                lines += [image, "", f"*{escape_markdown(caption)}*", ""]
            case Table():
                lines += [f"**{escape_markdown(block.title)}**", "", *_markdown_table(block), ""]
                for note in block.notes:
                    lines += [escape_markdown(note), ""]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def entry(cell: Cell | str) -> str:
        if isinstance(cell, Cell) and cell.best:
            return f"**{escape_markdown(cell.text)}** {escape_markdown(cell.detail)}".rstrip()
        return escape_markdown(str(cell))

    rule = ["---"] + ["---:"] * (len(table.columns) - 1)
    rows = [map(entry, row) for row in [*table.rows, *table.references]]
    return [line(map(escape_markdown, table.columns)), line(rule), *map(line, rows)]


# Characters that move a terminal's cursor or the direction of text, but for ends of lines, and
# those that UTF-8 cannot have.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def without_controls(text: str) -> str:
    """Return `text` with control characters, but not ends of lines, as escapes."""
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


# Marks of Markdown in the middle of a line, and brackets that make a link or an image. An
# underscore inside a word is no mark.
_MARKS = re.compile(r"[\\|*`~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])")
_BRACKETS = re.compile(r"(?<!\\)[\[\]]")


def escape_markdown(text: str, *, in_brackets: bool = False) -> str:
    """Return `text` in one line without marks, links, images or HTML.

    A table or a paragraph can take it as it is. A bare address (http://…) stays, of which GitHub
    makes a link.

    Args:
        text: Any text.
        in_brackets: Whether it is to stand in the brackets of a link or an image.
    """
    line = without_controls(" ".join(text.splitlines()))
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    escaped = _MARKS.sub(r"\\\g<0>", line)
    return _BRACKETS.sub(r"\\\g<0>", escaped) if in_brackets else escaped


def duration(hours: float) -> str:
    """Return hours as days, hours, minutes or seconds, in the largest unit that is one or more."""
    for name, length in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.3g} {name}"
    return f"{hours * 3600:.3g} s"


def size_of(count: int) -> str:
    """Return bytes in the largest unit of which there is one or more."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            decimals = 2 if count < 10 * unit else 0
            return f"{count / unit:.{decimals}f} {name}"
    return f"{count} B"
