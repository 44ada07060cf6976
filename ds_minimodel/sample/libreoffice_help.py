"""Pages of LibreOffice's help: the same pages and paragraph ids in every language."""

from collections import Counter
from dataclasses import astuple, dataclass

from lxml import html

from ds_minimodel.sample.languages import language_of_locale
from ds_minimodel.sample.lines import clean

# Boxes that repeat text of other pages, or only link to them.
EMBEDDED = {"embedded", "howtoget", "icontable", "relatedtopics"}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


@dataclass(frozen=True)
class Element:
    """A heading or paragraph of a page.

    `key` (id and how many elements of the page had it before) is the same in all languages; None where
    the element has no id. `embedded`: it belongs to another page. `extended`: the part of a paragraph
    that is marked as extended help, a one-sentence description of what the page's last heading names.
    """

    heading: bool
    key: str | None
    text: str
    extended: str | None
    embedded: bool


def extract(root):
    """Documents {language, page, lines, elements} of an unpacked libreoffice-help package.

    `elements` holds the fields of an Element for each line; `elements_of` turns them back.
    """
    for base in sorted(root.glob("usr/share/libreoffice/help/*/text")):
        language = language_of_locale(base.parent.name)
        for path in sorted(base.rglob("*.html")) if language else ():
            elements = read_page(path)
            if elements:
                yield {
                    "language": language,
                    "page": str(path.relative_to(base)),
                    "lines": [element.text for element in elements],
                    "elements": [astuple(element) for element in elements],
                }


def elements_of(document):
    return [Element(*fields) for fields in document["elements"]]


def read_page(path):
    """Elements of one HTML page in reading order; [] where it has no help text."""
    tree = html.parse(str(path), html.HTMLParser(encoding="utf-8")).getroot()
    area = None if tree is None else tree.get_element_by_id("DisplayArea", None)
    if area is None:
        return []
    elements, seen = [], Counter()
    for node in area.iter(*HEADINGS, "p"):
        text = clean(node.text_content())
        if not text:
            continue
        embedded = any(EMBEDDED & set((parent.get("class") or "").split()) for parent in node.iterancestors())
        key, name = None, node.get("id")
        if name and not embedded:
            key = f"{name}#{seen[name]}"
            seen[name] += 1
        elements.append(Element(node.tag != "p", key, text, _extended_help(node), embedded))
    return elements


def _extended_help(node):
    spans = [span.text_content() for span in node.iter("span") if span.get("class") == "avis"]
    return clean(" ".join(spans)) or None
