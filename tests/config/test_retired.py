"""What is no longer there is refused by one line that says what to use instead."""

import pytest

from ds_minimodel import api
from ds_minimodel.cli.main import parse
from ds_minimodel.common.retired import INSTEAD
from tests.helpers.refusals import refuses

OF_RECIPES = {
    "adapt.initialisation=ofa": "adapt.initialisation=ofa: ofa is",
    "adapt.word_vectors": "adapt.word_vectors={en: en.vec}: is",
    "finetune.tasks.NAME.kind=multiple-choice": "finetune.tasks.topic.kind=multiple-choice: "
    "multiple-choice is",
}
OF_COMMANDS = {
    "ds-minimodel chats-from-text": "chats-from-text TEXT --out FILE",
    "ds-minimodel extend --keep": "extend MODEL TEXT --language de --keep chat=3",
    "ds-minimodel pack join": "pack join OUT PACK PACK",
    "ds-minimodel pack show": "pack show PACK --json",
}
OF_PROGRAMS = {"ds_minimodel.api.join_packs"}


def test_every_name_is_tried_here():
    assert {*OF_RECIPES, *OF_COMMANDS, *OF_PROGRAMS} == {*INSTEAD}


@pytest.mark.parametrize("name, words", OF_RECIPES.items())
def test_recipes(load, name, words):
    with refuses() as error:
        load(words.rpartition(": ")[0])
    assert str(error.value) == f"{words} no longer there; {INSTEAD[name]}"


@pytest.mark.parametrize("name, command", OF_COMMANDS.items())
def test_commands(name, command):
    with refuses() as error:
        parse(command.split())
    assert str(error.value) == f"{name} is no longer there; {INSTEAD[name]}"


@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_programs(name):
    with pytest.raises(ImportError, match=f"{name} is no longer there; {INSTEAD[name]}"):
        getattr(api, name.rpartition(".")[2])
