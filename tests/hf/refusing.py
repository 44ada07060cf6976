"""An import that is refused, and a change to a JSON file."""

import json

import pytest

from ds_minimodel.artifacts.base import refer
from ds_minimodel.common.errors import UserError


def refused(folder, out, *words):
    """One line, with the folder and these words, and nothing written."""
    with pytest.raises(UserError) as error:
        refer(folder, out)
    line = str(error.value)
    assert "\n" not in line and all(word in line for word in (str(folder), *words)), line
    assert not out.exists() and not [*out.parent.glob(f"{out.name}.*")]


def change(path, **values):
    """Other values in a JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
