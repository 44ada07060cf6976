"""An import that is refused, and a change to a JSON file."""

from ds_minimodel.artifacts.base import refer
from tests.helpers.files import read_json, write_json
from tests.helpers.refusals import refuses


def refused(folder, out, *words):
    """One line, with the folder and these words, and nothing written."""
    with refuses() as error:
        refer(folder, out)
    line = str(error.value)
    assert "\n" not in line, line
    assert all(word in line for word in (str(folder), *words)), line
    assert not out.exists()
    assert not [*out.parent.glob(f"{out.name}.*")]


def change(path, **values):
    """Other values in a JSON object."""
    write_json(path, {**read_json(path), **values})
