"""What is no longer there is refused by one line that says what to use instead."""

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.retired import INSTEAD

OF_RECIPES = {
    "adapt.initialisation=ofa": "adapt.initialisation=ofa: ofa is",
    "adapt.word_vectors": "adapt.word_vectors={en: en.vec}: is",
}


def test_every_name_is_tried_here():
    assert {*OF_RECIPES} == {*INSTEAD}


@pytest.mark.parametrize("name, words", OF_RECIPES.items())
def test_recipes(load, name, words):
    with pytest.raises(UserError) as error:
        load(words.rpartition(": ")[0])
    assert str(error.value) == f"{words} no longer there; {INSTEAD[name]}"
