"""Some hundred inputs at random, at fixed seeds: each is answered, or refused by one line and nothing written."""

import random

import pytest

from ds_minimodel.engine.ranks.launch import CPU

from .generators import CASES, describe, outcome


@pytest.mark.parametrize("generator", CASES, ids=lambda generator: generator.__name__)
def test_what_is_wrong_is_refused_by_one_line(generator, tmp_path, monkeypatch):
    for name, value in CPU.items():  # for which a command would replace its process
        monkeypatch.setenv(name, value)
    rng, faults = random.Random(2023), []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = outcome(generator(rng), folder)
        faults += [describe(found)] if found.fault else []
    assert not faults, "\n".join(faults)
