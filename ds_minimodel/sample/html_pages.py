"""Documents out of manuals in HTML and in Mallard (GNOME's XML): a page a document, a block a line."""

from lxml import etree, html

from ds_minimodel.sample.languages import language_of_locale
from ds_minimodel.sample.lines import clean

# Elements that end the line before them; every other element is part of a line.
BLOCKS = frozenset(
    "html body main section article div p ul ol li dl dt dd table thead tbody tr td th "
    "caption h1 h2 h3 h4 h5 h6 blockquote hr".split()
)
MALLARD_BLOCKS = frozenset("page section title desc p list steps item terms table tr td note".split())
# Code, navigation and tables of contents are not text.
SKIPPED = frozenset("head script style pre nav form svg math".split())
MALLARD_SKIPPED = frozenset("credit code screen revision license media".split())
SKIPPED_NAMES = frozenset(
    "navheader navfooter docnav toc tocframe contents footer banner related headerlink "
    "sig nav_table sphinxsidebar languages programlisting screen synopsis".split()
)
LINE_END = "\0"
SKIPPED_FILES = ("genindex", "big-page", "search.html", "py-modindex")


def pages_in(folder, language):
    """extract(root) for a package whose HTML pages under `folder` (a glob) are all in one language."""

    def extract(root):
        for base in sorted(root.glob(folder)):
            yield from html_documents(base, language)

    return extract


def pages_by_folder(folder):
    """extract(root) for a package with one folder of HTML pages a language in `folder`, named by locale."""

    def extract(root):
        for base in sorted(root.glob(f"{folder}/*")):
            language = language_of_locale(base.name)
            if language:
                yield from html_documents(base, language)

    return extract


def pages_and_translations(folder):
    """extract(root) for English HTML pages with folders translations/LOCALE among them."""

    def extract(root):
        for base in sorted(root.glob(folder)):
            yield from html_documents(base, "en", skip_folder="translations")
        yield from pages_by_folder(f"{folder}/translations")(root)

    return extract


def mallard_by_folder(root):
    """Documents of GNOME's help: usr/share/help/LOCALE, where C is English."""
    for base in sorted(root.glob("usr/share/help/*")):
        language = "en" if base.name == "C" else language_of_locale(base.name)
        for path in sorted(base.rglob("*.page")) if language else ():
            tree = etree.parse(str(path), etree.XMLParser(recover=True, resolve_entities=False))
            yield from _document(tree.getroot(), language, MALLARD_BLOCKS, MALLARD_SKIPPED)


def html_documents(base, language, skip_folder=None):
    """Documents of the HTML pages below `base`, one folder of it left out."""
    for path in sorted(base.rglob("*.html")):
        if any(name in path.name for name in SKIPPED_FILES) or skip_folder in path.relative_to(base).parts:
            continue
        tree = html.parse(str(path), html.HTMLParser(encoding="utf-8")).getroot()
        if tree is not None:
            main = tree.xpath("//*[@role='main']")  # Sphinx marks the text itself
            yield from _document(main[0] if main else tree, language, BLOCKS, SKIPPED)


def _document(root, language, blocks, skipped):
    lines = list(block_lines(root, blocks, skipped)) if root is not None else []
    if lines:
        yield {"language": language, "lines": lines}


def block_lines(root, blocks=BLOCKS, skipped=SKIPPED):
    """Clean lines of the text below `root`; a line ends where a block element begins or ends."""
    pieces = []
    _collect(root, blocks, skipped, pieces)
    return [line for line in map(clean, "".join(pieces).split(LINE_END)) if line]


def _collect(node, blocks, skipped, pieces):
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
