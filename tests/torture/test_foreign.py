"""Folders from strangers, damaged at fixed seeds: refused in one line, or used as what they are."""

import random
import shutil

import pytest

from ..hf.conftest import roberta_json, text_file, unigram_folder, xlm_r, xlm_r_json  # noqa: F401
from ..serve.conftest import family  # noqa: F401
from .foreign import artifact_outcome, copy, damage_artifact, damage_import, import_outcome

CHECKPOINTS = ["xlm_r_json", "roberta_json"]
IMPORTS, ARTIFACTS = 25, 25  # of each checkpoint, of each artifact


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_imports(request, tmp_path, name):
    """Refused, or let pass by the comparison with transformers that every import makes."""
    good, outcomes = request.getfixturevalue(name), []
    for seed in range(IMPORTS):
        folder, rng = copy(good, tmp_path / "hf"), random.Random(f"{name} {seed}")
        what = damage_import(folder, rng)
        try:
            outcomes.append(import_outcome(folder, tmp_path / "out"))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}") from error
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert outcomes.count("refused") > IMPORTS / 2 and "right" in outcomes


@pytest.mark.parametrize("name", ["body", "classification", "qa", "de", "zh"])
def test_artifacts(family, tmp_path, name):  # noqa: F811
    """Refused, or every request is answered as if nothing had happened but to numbers."""
    model, pack = (name, "de") if name not in ("de", "zh") else ("classification", name)
    refused = 0
    for seed in range(ARTIFACTS):
        parts = {part: copy(family.root / part, tmp_path / part) for part in (model, pack)}
        what = damage_artifact(parts[name], random.Random(f"{name} {seed}"))
        try:
            refused += artifact_outcome(parts[model], parts[pack]) == "refused"
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}") from error
    assert refused > ARTIFACTS / 2
