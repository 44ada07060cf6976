"""study/: pages and pictures are what the claims' scripts make of the stored results."""

import pytest

from ds_minimodel.common.files import read_json_lines
from study.claims import FOLDERS, ROOT, lists, sentence, written
from study.fifth.cells import declared as declared_of_fifth
from study.fifth.results import RESULTS
from study.third.cells import declared
from study.third.results import Results


@pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)
def test_a_claim_is_what_its_script_makes(folder):
    for path, text in written(folder):
        assert path.read_text() == text, "python -m study.claims writes it"
    for script in folder.glob("*.py"):
        # Columns are 100 wide, trailing commas magic.
        assert len(script.read_text().splitlines()) <= 130


def test_pages_list_every_claim():
    for path, text in lists():
        assert path.read_text() == text, "python -m study.claims writes it"
    assert len({sentence(folder) for folder in FOLDERS}) == len(FOLDERS)


def test_every_cell_that_was_run_is_declared_by_a_claim():
    cells = {cell.name for folder in FOLDERS for cell in declared(folder)}
    assert {name for name, row in Results().rows.items() if "system" in row} <= cells


def test_every_line_of_the_fifth_study_is_a_registered_cell_and_its_commit():
    cells = {cell.name for cell in declared_of_fifth()}
    rows = read_json_lines(RESULTS)
    assert {row["cell"] for row in rows} <= cells
    assert len({row["cell"] for row in rows}) == len(rows)
    assert all(len(row["commit"]) == 8 for row in rows)


def test_scripts_of_the_fifth_study_fit_a_screen_or_two():
    for script in (ROOT / "fifth").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 130
