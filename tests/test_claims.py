"""study/: pages and pictures are what the claims' scripts make of the stored results."""

import pytest

from ds_minimodel.common.files import read_json_lines
from study.claims import FOLDERS, ROOT, lists, sentence, written
from study.fifth import classifier, decoder, systems, verdicts_b
from study.fifth.cells import declared as declared_of_fifth
from study.fifth.lines import rows_of
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


@pytest.mark.parametrize(
    "path, cells",
    [
        (RESULTS, [*declared_of_fifth()]),
        *((script.RESULTS, script.declared()) for script in (classifier, systems, decoder)),
    ],
    ids=("part A", "classifier", "systems", "decoder"),
)
def test_every_line_of_the_fifth_study_is_a_registered_cell_and_its_commit(path, cells):
    rows = rows_of(path)
    assert rows.keys() <= {cell.name for cell in cells}
    assert len({cell.name for cell in cells}) == len(cells)
    assert len(read_json_lines(path)) == len(rows)
    assert all(len(row["commit"]) == 8 for row in rows.values())


def line_of_systems(seed, base, mini):
    """A line of systems.jsonl: scores of BL_BASE, and of both mini-models at half the cost."""
    curves = {"bl_base": (base, 2e-6), "minipost": (mini, 1e-6), "minijoint": (mini, 1e-6)}
    return {
        "seed": seed,
        "systems": {
            system: {"steps": [0, 300], "eflops": [0.0, cost], "scores": [scores]}
            for system, (scores, cost) in curves.items()
        },
    }


SOONER = "refuted by MiniPost and MiniJoint"


@pytest.mark.parametrize(
    "first, last, mini, said",
    [
        ([56, 57, 58], [57, 58, 59], [50, 56], ["holds, +1.0, +2.0, +3.0", "holds", "holds"]),
        ([40, 57, 58], [41, 58, 59], [30, 31], ["open, -15.0, +2.0, +3.0", "holds", "holds"]),
        ([40, 41, 42], [50, 51, 52], [30, 50], ["refuted, -15.0, -14.0, -13.0", "refuted", SOONER]),
        ([40, 41, 42], [50, 41, 52], [30, 50], ["refuted, -15.0, -14.0, -13.0", "open", SOONER]),
    ],
)
def test_part_b_judges_as_it_is_registered(first, last, mini, said):
    overlap = [line_of_systems(seed, [30, 55], [30, 55]) for seed in (1, 2, 3)]
    aligned = [
        line_of_systems(seed, ends, mini)
        for seed, ends in enumerate(zip(first, last, strict=True), start=1)
    ]
    judged = [judge(overlap, aligned) for judge in verdicts_b.CLAIMS.values()]
    for verdict, expected in zip(judged, said, strict=True):
        assert verdict.startswith(expected)


def test_scripts_of_the_fifth_study_fit_a_screen_or_two():
    for script in (ROOT / "fifth").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 130
