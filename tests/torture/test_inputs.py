"""Some hundred inputs at random, at fixed seeds: each is answered, or refused by one line and nothing written."""

import random

import pytest

from ds_minimodel.training.ranks.launch import CPU

from .inputs import CASES, make_files, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_wrong_is_refused_by_one_line(case, tmp_path, monkeypatch):
    for name, value in CPU.items():  # for which a command would replace its process
        monkeypatch.setenv(name, value)
    make_files(tmp_path / "good")
    assert outcome(["flops", "recipe.yaml"], tmp_path / "good") == (0, "")
    faults = []
    for seed in range(100):
        make_files(tmp_path / str(seed))
        command = case(random.Random(seed), tmp_path / str(seed))
        code, fault = outcome(command, tmp_path / str(seed))
        faults += [f"seed {seed}, {command!r:.200}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)
