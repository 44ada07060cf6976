"""The Debian packages of the fifth study, and how text is taken out of each."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ds_minimodel_examples import extractors
from ds_minimodel_examples.packages import Package
from ds_minimodel_examples.text import Document
from lxml import etree, html

from ds_minimodel.text.pairs import MIN_LINE, read_pairs

DICTIONARIES = {"de": "deu", "el": "ell", "hu": "hun", "tr": "tur", "ja": "jpn"}
LANGUAGES = "de", "el", "hu", "tr", "eu", "ja"
ENGLISH = "en", "en-US", "C"  # as packages call it
CAMPAIGNS = "did", "dm", "dw", "ei"
Extractor = Callable[[Path], Iterator[Document]]


def pages(folder: str, files: str, read: Callable[[Path], list[str]]) -> Extractor:
    """An extractor of the lines of each file; below `folder` each language has its own."""

    def extract(root: Path) -> Iterator[Document]:
        for base in sorted(root.glob(f"{folder}/*")):
            code = "en" if base.name in ENGLISH else base.name
            for path in sorted(base.rglob(files)) if code in ("en", *LANGUAGES) else ():
                yield {
                    "language": code,
                    "page": str(path.relative_to(base)),
                    "lines": read(path),
                }

    return extract


def of_help(path: Path) -> list[str]:
    return [element.text for element in extractors.read_page(path)]


def of_html(path: Path) -> list[str]:
    parser = html.HTMLParser(encoding="utf-8")
    return extractors.block_lines(html.parse(str(path), parser).getroot())


def of_mallard(path: Path) -> list[str]:
    tree = etree.parse(str(path), etree.XMLParser(recover=True, resolve_entities=False))
    blocks, skipped = extractors.MALLARD_BLOCKS, extractors.MALLARD_SKIPPED
    return extractors.block_lines(tree.getroot(), blocks, skipped)


def stories(root: Path) -> Iterator[Document]:
    """The messages of a campaign as pairs of lines."""
    for language in LANGUAGES:
        for path in sorted(root.glob(f"usr/**/{language}/LC_MESSAGES/*.mo")):
            for sides in extractors.messages(path.read_bytes()):
                source, target = map(extractors.message_lines, sides)
                if len(source) == len(target):
                    pairs = [*zip(source, target, strict=True)]
                    yield {"language": language, "page": path.stem, "lines": [], "pairs": pairs}


def entries(root: Path) -> Iterator[Document]:
    """The entries of a dictionary as the package itself reads them, but for whole sentences."""
    for path in root.glob("usr/share/dictd/*.index"):
        language = next(own for own, name in DICTIONARIES.items() if path.stem.endswith(name))
        (text,) = read_pairs([path], ("en", language))
        pairs = [(pair.source, pair.target) for pair in text.pairs if len(pair.source) < MIN_LINE]
        yield {"language": language, "page": path.stem, "lines": [], "pairs": pairs}


def packages(languages: Sequence[str]) -> dict[str, list[Package]]:
    """{kind of text: its packages}; what a language lacks is left out when they are fetched."""
    of_pages = {
        "libreoffice-help": pages("usr/share/libreoffice/help", "text/**/*.html", of_help),
        "gimp-help": pages("usr/share/gimp/2.0/help", "*.html", of_html),
    }
    found = {
        kind: [Package(f"{kind}-{own}", extract, "help pages") for own in ("en", *languages)]
        for kind, extract in of_pages.items()
    }
    named = [f"dict-freedict-eng-{DICTIONARIES.get(own, own)}" for own in languages]
    gnome = pages("usr/share/help", "*.page", of_mallard)
    english = Package("libreoffice-help-en-us", of_pages["libreoffice-help"], "help pages")
    return {
        "help": [english, *found["libreoffice-help"][1:]],
        "gimp": found["gimp-help"],
        "dictionary": [Package(own, entries, "entries") for own in named],
        "gnome": [Package("gnome-user-docs", gnome, "help pages")],
        "story": [Package(f"wesnoth-1.16-{own}", stories, "stories") for own in CAMPAIGNS],
    }
