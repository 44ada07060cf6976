"""What the claims' scripts make of the stored results of the third and fourth study, and what the
fifth's cells come to.

    python -m study.claims [CLAIM…]

writes picture.svg of each claim, the section Numbers of its README.md, and the list of all claims
in the studies' pages.

A claim is a folder: claim.yaml says it in a sentence and names its cells, README.md says it in
words, claim.py has `tables()`, markdown, and `drawing()`, SVG.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ds_minimodel.config.reading import read_yaml
from study.fifth import tables, tables_b, verdicts, verdicts_b
from study.third.cells import CLAIMS
from study.third.results import pages

ROOT = Path(__file__).parent
FOLDERS = [ROOT / "third" / claim for claim in CLAIMS] + [
    ROOT / "fourth" / claim for claim in ("kl", "length", "replay", "strength")
]
LISTS = {"third": "third/findings.md", "fourth": "fourth/README.md"}


def sentence(folder: Path) -> str:
    return str(read_yaml((folder / "claim.yaml").read_text("utf-8"))[0]["claim"])


def with_section(page: str, heading: str, text: str) -> str:
    """The page with `text` as what stands below a heading of the second level."""
    begun = f"## {heading}\n"
    assert begun in page, f"a page has no heading {heading}"
    return (
        re.sub(rf"(?ms)^{begun}.*?(?=^## |\Z)", lambda _: f"{begun}{text}\n\n", page).rstrip("\n")
        + "\n"
    )


def written(folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, contents) of a claim."""
    module = importlib.import_module(".".join(folder.relative_to(ROOT.parent).parts) + ".claim")
    page = folder / "README.md"
    yield folder / "picture.svg", module.drawing()
    yield page, with_section(page.read_text("utf-8"), "Numbers", "\n\n".join(module.tables()))


def lists() -> Iterator[tuple[Path, str]]:
    """(page, contents) of the pages that list claims, and of those that list cells."""
    for study, name in LISTS.items():
        of = [folder for folder in FOLDERS if folder.parent.name == study]
        told = [
            f"**[{sentence(one)}]({one.name}/README.md).**\n\n![{sentence(one)}]({one.name}/picture.svg)"
            for one in of
        ]
        yield (
            ROOT / name,
            with_section((ROOT / name).read_text("utf-8"), "Claims", "\n\n".join(told)),
        )
    cells = ROOT / "third/cells.md"
    yield cells, with_section(cells.read_text("utf-8"), "Numbers", "\n\n".join(pages()))
    fifth = ROOT / "fifth/README.md"
    judged = [*verdicts.pages(), *verdicts_b.pages()]
    numbers = [*tables.pages(), *tables_b.pages()]
    page = with_section(fifth.read_text("utf-8"), "Verdicts", "\n\n".join(judged))
    yield fifth, with_section(page, "Numbers", "\n\n".join(numbers))


def main() -> None:
    chosen = [folder for folder in FOLDERS if not sys.argv[1:] or folder.name in sys.argv[1:]]
    for path, text in [*(pair for folder in chosen for pair in written(folder)), *lists()]:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
