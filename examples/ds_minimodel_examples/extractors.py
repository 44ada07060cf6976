"""Documents out of a package's files, by format: HTML, Mallard, LibreOffice's help, man pages,
catalogues, sayings.

Each extractor takes the folder of an unpacked package and yields `text.Document`.
"""

import gzip
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import yaml
from lxml import etree, html

from ds_minimodel_examples.packages import Apt, stanzas
from ds_minimodel_examples.text import LANGUAGES, Document, clean, language_of_locale

Extractor = Callable[[Path], Iterator[Document]]

# --- manuals in HTML and in Mallard (GNOME's XML): a page is a document, a block element a line


# Elements that end the line before them; every other element is part of a line.
BLOCKS = frozenset(
    "html body main section article div p ul ol li dl dt dd table thead tbody tr td th "
    "caption h1 h2 h3 h4 h5 h6 blockquote hr".split()
)
MALLARD_BLOCKS = frozenset(
    "page section title desc p list steps item terms table tr td note".split()
)
# Code, navigation and tables of contents are not text.
SKIPPED = frozenset("head script style pre nav form svg math".split())
MALLARD_SKIPPED = frozenset("credit code screen revision license media".split())
SKIPPED_NAMES = frozenset(
    "navheader navfooter docnav toc tocframe contents footer banner related headerlink "
    "sig nav_table sphinxsidebar languages programlisting screen synopsis".split()
)
LINE_END = "\0"
SKIPPED_FILES = ("genindex", "big-page", "search.html", "py-modindex")


def pages_in(folder: str, language: str) -> Extractor:
    """Extractor for a package whose HTML pages under `folder` (a glob) are all in one language."""

    def extract(root: Path) -> Iterator[Document]:
        for base in sorted(root.glob(folder)):
            yield from html_documents(base, language)

    return extract


def pages_by_folder(folder: str) -> Extractor:
    """Extractor for a package with one folder of HTML pages a language in `folder`, named by
    locale.
    """

    def extract(root: Path) -> Iterator[Document]:
        for base in sorted(root.glob(f"{folder}/*")):
            language = language_of_locale(base.name)
            if language:
                yield from html_documents(base, language)

    return extract


def pages_and_translations(folder: str) -> Extractor:
    """Extractor for English HTML pages with folders translations/LOCALE among them."""

    def extract(root: Path) -> Iterator[Document]:
        for base in sorted(root.glob(folder)):
            yield from html_documents(base, "en", skip_folder="translations")
        yield from pages_by_folder(f"{folder}/translations")(root)

    return extract


def mallard_by_folder(root: Path) -> Iterator[Document]:
    """Yield the documents of GNOME's help: usr/share/help/LOCALE, where C is English."""
    for base in sorted(root.glob("usr/share/help/*")):
        language = "en" if base.name == "C" else language_of_locale(base.name)
        if language is None:
            continue
        for path in sorted(base.rglob("*.page")):
            tree = etree.parse(str(path), etree.XMLParser(recover=True, resolve_entities=False))
            yield from _document(tree.getroot(), language, MALLARD_BLOCKS, MALLARD_SKIPPED)


def html_documents(base: Path, language: str, skip_folder: str | None = None) -> Iterator[Document]:
    """Yield the documents of the HTML pages below `base`, one folder of it left out."""
    for path in sorted(base.rglob("*.html")):
        if (
            any(name in path.name for name in SKIPPED_FILES)
            or skip_folder in path.relative_to(base).parts
        ):
            continue
        tree = html.parse(str(path), html.HTMLParser(encoding="utf-8")).getroot()
        if tree is not None:
            main = tree.xpath("//*[@role='main']")  # Sphinx marks the text itself
            yield from _document(main[0] if main else tree, language, BLOCKS, SKIPPED)


def _document(
    root: etree._Element | None, language: str, blocks: frozenset[str], skipped: frozenset[str]
) -> Iterator[Document]:
    lines = list(block_lines(root, blocks, skipped)) if root is not None else []
    if lines:
        yield {"language": language, "lines": lines}


def block_lines(
    root: etree._Element, blocks: frozenset[str] = BLOCKS, skipped: frozenset[str] = SKIPPED
) -> list[str]:
    """Clean lines of the text below `root`; a line ends where a block element begins or ends."""
    pieces: list[str] = []
    _collect(root, blocks, skipped, pieces)
    return [line for line in map(clean, "".join(pieces).split(LINE_END)) if line]


def _collect(
    node: etree._Element, blocks: frozenset[str], skipped: frozenset[str], pieces: list[str]
) -> None:
    """Append the text of a node in reading order to `pieces`, LINE_END around blocks."""
    if not isinstance(node.tag, str):  # a comment
        return
    name = etree.QName(node).localname
    names = {node.get("id"), *(node.get("class") or "").split()}
    if name in skipped or not SKIPPED_NAMES.isdisjoint(names):
        return
    around = LINE_END if name in blocks else ""
    pieces.append(around + (node.text or ""))
    for child in node:
        _collect(child, blocks, skipped, pieces)
        pieces.append(child.tail or "")
    pieces.append(" " if name == "br" else around)


# --- LibreOffice's help: the same pages and paragraph ids in every language


# Boxes that repeat text of other pages, or only link to them.
EMBEDDED = {"embedded", "howtoget", "icontable", "relatedtopics"}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


@dataclass(frozen=True)
class Element:
    """A heading or paragraph of a page.

    `key` (id and how many elements of the page had it before) is the same in all languages; None
    where the element has no id. `embedded`: it belongs to another page. `extended`: the part of a
    paragraph that is marked as extended help, a one-sentence description of what the page's last
    heading names.
    """

    heading: bool
    key: str | None
    text: str
    extended: str | None
    embedded: bool


def help_documents(root: Path) -> Iterator[Document]:
    """Yield the pages of an unpacked libreoffice-help package, with `page` and `elements`.

    `elements` holds the fields of an Element for each line; `elements_of` turns them back.
    """
    for base in sorted(root.glob("usr/share/libreoffice/help/*/text")):
        language = language_of_locale(base.parent.name)
        if language is None:
            continue
        for path in sorted(base.rglob("*.html")):
            elements = read_page(path)
            if elements:
                yield {
                    "language": language,
                    "page": str(path.relative_to(base)),
                    "lines": [element.text for element in elements],
                    "elements": [astuple(element) for element in elements],
                }


def elements_of(document: Document) -> list[Element]:
    """Elements of a page that `help_documents` yielded."""
    return [Element(*fields) for fields in document["elements"]]


def read_page(path: Path) -> list[Element]:
    """Elements of one HTML page in reading order; [] where it has no help text."""
    tree = html.parse(str(path), html.HTMLParser(encoding="utf-8")).getroot()
    area = None if tree is None else tree.get_element_by_id("DisplayArea", None)
    if area is None:
        return []
    elements: list[Element] = []
    seen: Counter[str] = Counter()
    for node in area.iter(*HEADINGS, "p"):
        text = clean(node.text_content())
        if not text:
            continue
        embedded = any(
            EMBEDDED & set((parent.get("class") or "").split()) for parent in node.iterancestors()
        )
        key, name = None, node.get("id")
        if name and not embedded:
            key = f"{name}#{seen[name]}"
            seen[name] += 1
        elements.append(Element(node.tag != "p", key, text, _extended_help(node), embedded))
    return elements


def _extended_help(node: etree._Element) -> str | None:
    spans = [span.text_content() for span in node.iter("span") if span.get("class") == "avis"]
    return clean(" ".join(spans)) or None


# --- manual pages: a page is a document, a paragraph a line


# Requests of man(7) whose arguments are text of the running paragraph.
FONTS = frozenset("B I R BR IR RB RI BI IB SM SB".split())
BLOCK_BEGIN, BLOCK_END = (
    frozenset("nf EX TS EQ SY ig".split()),
    frozenset("fi EE TE EN YS .".split()),
)
_REQUEST = re.compile(r"[.']\s*([A-Za-z.]*)\s*(.*)")
# Names of two letters, each before its character.
_NAMED = "aq' dq\" lq“ rq” oq‘ cq’ en– em— bu ha^ ti~ rs\\ co© hy- Fo« Fc»"
_GLYPHS = {word[:2]: word[2:] for word in _NAMED.split()}


def man_page_documents(root: Path) -> Iterator[Document]:
    """Yield the man pages in an unpacked package; those in mdoc(7) are left out: another markup
    language.
    """
    base = root / "usr/share/man"
    for path in sorted(base.rglob("*.gz")):
        locale = path.relative_to(base).parts[0]
        language = "en" if re.fullmatch(r"man\d\w*", locale) else language_of_locale(locale)
        if language and not path.is_symlink():
            try:
                source = gzip.decompress(path.read_bytes()).decode("utf-8")
            except UnicodeDecodeError:
                continue  # an old page in an 8-bit encoding that it does not name
            lines = [] if re.search(r"^\.Dd\b", source, re.MULTILINE) else list(paragraphs(source))
            if lines:
                yield {"language": language, "lines": lines}


def paragraphs(source: str) -> Iterator[str]:
    """Yield the clean text lines of a man(7) page: headings and paragraphs; tables and literal
    blocks are left out.
    """
    words: list[str] = []
    in_block = False
    for line in source.split("\n"):
        request = _REQUEST.match(line)
        name, argument = request.groups() if request else ("", line)
        if name in BLOCK_BEGIN or name in BLOCK_END:
            in_block = name in BLOCK_BEGIN
        if in_block or (line.startswith(('.\\"', "'\\\""))):
            continue
        if request and name in FONTS:
            words.append(_font_text(name, argument))
        elif not request and line.strip():
            words.append(plain(line))
        else:
            yield from _paragraph(words)
            words = []
            if name in ("SH", "SS"):
                yield from _paragraph([plain(argument.replace('"', ""))])
    yield from _paragraph(words)


def _paragraph(words: list[str]) -> Iterator[str]:
    text = clean(" ".join(words))
    if text:
        yield text


def _font_text(name: str, argument: str) -> str:
    """Arguments of a font request: alternating fonts (BR, IR, …) join them without spaces."""
    parts = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', argument)]
    return plain(("" if len(name) == 2 and name not in ("SM", "SB") else " ").join(parts))


def plain(text: str) -> str:
    """Text without troff's escapes."""
    text = re.sub(r'\\".*', "", text)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)", "", text)
    text = re.sub(r"\\[smhvwk]([+-]?\d+|'[^']*'|\[[^]]*\])", "", text)
    text = re.sub(
        r"\\(?:\((..)|\[([^]]*)\])", lambda match: _GLYPHS.get(match[1] or match[2], ""), text
    )
    text = re.sub(r"\\[*n](\[[^]]*\]|\(..|.)", "", text)
    return re.sub(
        r"\\(.)",
        lambda match: {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "\\": "\\"}.get(
            match[1], ""
        ),
        text,
    )


# --- compiled message catalogues (gettext's .mo): a message is a document


MAGIC = 0x950412DE
TIP = "|extended_tip|"
_MARKUP = re.compile(r"<[^>]{1,80}>")
_CONTEXT = re.compile(r"^[^\n^]{1,40}\^")  # Wesnoth writes "female^text", "wesnoth^text"
_ACCELERATOR = re.compile(r"[~_&](?=\w)")


def catalogue_documents(root: Path) -> Iterator[Document]:
    """Yield the messages of all catalogues in an unpacked package: translations, and their English
    originals.

    Where widgets have tips that explain them, the pairs of a dialog come once more as a document
    without lines.
    """
    seen = set()
    for path in sorted(root.glob("usr/**/LC_MESSAGES/*.mo")):
        language = language_of_locale(path.parent.parent.name)
        if language is None or language == "en":
            continue
        for original, translation in messages(path.read_bytes()):
            for code, text in (("en", original), (language, translation)):
                lines = message_lines(text)
                if lines and (code, text) not in seen:
                    seen.add((code, text))
                    yield {"language": code, "lines": lines}
        yield from _explained_widgets(path, language)


def _explained_widgets(path: Path, language: str) -> Iterator[Document]:
    """Yield a document for each dialog in a catalogue of LibreOffice's, whose contexts are
    DIALOG|[extended_tip|]ID.
    """
    of_context = {context: texts for context, *texts in _entries(path.read_bytes())}
    pairs: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for context, tips in of_context.items():
        dialog, _, widget = context.partition(TIP)
        labels = of_context.get(f"{dialog}|{widget}")
        if widget and labels:
            for code, label, tip in zip(("en", language), labels, tips, strict=True):
                pairs[dialog, code].append(
                    (" ".join(message_lines(label)), " ".join(message_lines(tip)))
                )
    for (dialog, code), found in pairs.items():
        yield {
            "language": code,
            "lines": [],
            "page": f"messages/{path.stem}/{dialog}",
            "pairs": found,
        }


def messages(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield (original, translation) of a .mo file's bytes, singular forms, without contexts."""
    for _, original, translation in _entries(data):
        yield original, translation


def _entries(data: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield (context or "", original, translation) of a .mo file's bytes, singular forms.

    Format: GNU gettext manual, "The Format of GNU MO Files".
    """
    order = "<" if struct.unpack_from("<I", data)[0] == MAGIC else ">"
    count, originals, translations = struct.unpack_from(f"{order}III", data, 8)
    for index in range(count):
        original = _string(data, order, originals + 8 * index)
        translation = _string(data, order, translations + 8 * index)
        context, _, original = original.rpartition("\x04")
        if original:  # the empty one is the catalogue's own header
            yield context, original.split("\0")[0], translation.split("\0")[0]


def _string(data: bytes, order: str, at: int) -> str:
    length, start = struct.unpack_from(f"{order}II", data, at)
    return data[start : start + length].decode("utf-8", errors="replace")


def message_lines(text: str) -> list[str]:
    """Lines of a message without markup, context marks and keyboard accelerators."""
    text = _ACCELERATOR.sub("", _MARKUP.sub("", _CONTEXT.sub("", text)))
    return [line.strip() for line in text.split("\n") if line.strip()]


# --- fortune files: a saying is a document


_COLOUR = re.compile(r"\x1b\[[0-9;]*m|.\x08")


def sayings_in(language: str) -> Extractor:
    """Extractor for a package of fortunes in one language; offensive ones (folder `off`) stay
    out.
    """

    def extract(root: Path) -> Iterator[Document]:
        for path in sorted(root.glob("usr/share/games/fortunes/**/*")):
            if (
                path.is_file()
                and not path.is_symlink()
                and path.suffix != ".dat"
                and "off" not in path.parts
            ):
                text = _COLOUR.sub("", path.read_text(encoding="utf-8", errors="replace"))
                for saying in re.split(r"^%+$", text, flags=re.MULTILINE):
                    lines = [
                        " ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", saying)
                    ]
                    if any(lines):
                        yield {"language": language, "lines": [line for line in lines if line]}

    return extract


# --- apt's indexes: the descriptions of all packages and their translations, and those of
# applications


def description_documents(apt: Apt) -> Iterator[Document]:
    """Yield the package descriptions in the Translation indexes that `apt` has, one for each
    language.

    A page is packages/SOURCE; the first line is the synopsis.
    """
    codes = {language.translation: code for code, language in LANGUAGES.items()}
    sources = apt.sources()
    seen = set()
    for path, translation in apt.translations().items():
        if translation not in codes:
            continue
        language = codes[translation]
        with open(path, encoding="utf-8", errors="replace") as file:
            for stanza in stanzas(file):
                text = stanza.get(f"Description-{translation}")
                same = (language, stanza.get("Description-md5"))
                if text and same not in seen:
                    seen.add(same)
                    yield _description(
                        language, stanza["Package"], sources, [], description_lines(text)
                    )


def application_documents(apt: Apt) -> Iterator[Document]:
    """Yield the descriptions of applications in AppStream's indexes, as `description_documents`
    does those of packages.

    The first line is the summary. It is translated more often than the description is.
    """
    sources = apt.sources()
    for path in apt.components():
        with open(path, encoding="utf-8") as file:
            for component in yaml.load_all(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                if "Package" in component:
                    descriptions = component.get("Description") or {}
                    for locale, summary in component.get("Summary", {}).items():
                        language = (
                            "en"
                            if locale == "C"
                            else language_of_locale(locale)
                            if locale != "en"
                            else None
                        )
                        if language:
                            body = html.fromstring(f"<div>{descriptions.get(locale, '')}</div>")
                            names = [
                                name
                                for name in component.get("Name", {}).values()
                                if isinstance(name, str)
                            ]
                            lines = [clean(str(summary)), *block_lines(body)]
                            yield _description(
                                language, component["Package"], sources, names, lines
                            )


def _description(
    language: str,
    package: str,
    sources: Mapping[str, tuple[str, str]],
    names: list[str],
    lines: list[str],
) -> Document:
    source, section = sources.get(package, (package, ""))
    return {
        "language": language,
        "lines": lines,
        "page": f"packages/{source}",
        "label": section,
        "names": sorted({package, source, *names}),
    }


def description_lines(text: str) -> list[str]:
    """Synopsis, paragraphs and list items of a description.

    Debian Policy 5.6.13: " ." ends a paragraph, a line with two spaces before it is verbatim: list
    items.
    """
    synopsis, *rest = text.split("\n")
    lines: list[str] = [synopsis]
    words: list[str] = []
    for line in [*rest, "."]:
        item = re.match(r"\s*[-*•o+] ", line)
        if line.strip() == "." or item:
            lines.append(" ".join(words))
            words = [line[item.end() :]] if item else []
        else:
            words.append(line.strip())
    return [line for line in map(clean, lines) if line]
