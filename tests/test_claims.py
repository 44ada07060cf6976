"""study/: pages and pictures are what the claims' scripts make of the stored results."""

import pytest

from study.claims import FOLDERS, lists, sentence, written
from study.third.cells import declared
from study.third.results import Results


@pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)
def test_a_claim_is_what_its_script_makes(folder):
    for path, text in written(folder):
        assert path.read_text(encoding="utf-8") == text, "python -m study.claims writes it"
    for script in folder.glob("*.py"):
        assert (
            len(script.read_text(encoding="utf-8").splitlines()) <= 130
        )  # columns are 100 wide, trailing commas magic


def test_pages_list_every_claim():
    for path, text in lists():
        assert path.read_text(encoding="utf-8") == text, "python -m study.claims writes it"
    assert len({sentence(folder) for folder in FOLDERS}) == len(FOLDERS)


def test_every_cell_that_was_run_is_declared_by_a_claim():
    cells = {cell.name for folder in FOLDERS for cell in declared(folder)}
    assert {name for name, row in Results().rows.items() if "system" in row} <= cells
