"""Step 2 from another initialisation."""

import json

import pytest
import torch

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import is_pending
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

from ..forks import done
from ..tokenizers.test_alignment import model_one
from .conftest import copy_of, make_world, prepare

pytestmark = pytest.mark.slow


def test_step_2_records_it_and_trains_on(world, tmp_path):
    recipe = copy_of(world, tmp_path)
    arguments = ("adapt", recipe, "systems=[bl_small]", "adapt.initialisation=random")
    with pytest.raises(UserError, match="made from another recipe"):
        is_pending(STEPS["adapt"], load_recipe(*arguments[1:2], arguments[2:]))
    done(*arguments, "--rebuild")
    folder = tmp_path / "copy/run/adapt/bl_small/xx"
    first, last = folder / "snapshots/step-00000000", folder / "pack"
    assert all(read_manifest(pack)["initialisation"] == "random" for pack in (first, last))
    before, after = map(load_adaptation, (first, last))
    assert (
        not before.embeddings["tokens"][5].equal(after.embeddings["tokens"][5]) and not after.update
    )
    record = json.loads((folder.parent / "xx.job.json").read_text())
    assert record["inputs"]["adapt"]["initialisation"] == "random"


def test_pairs_alone_give_a_language_its_embeddings(tmp_path):
    recipe = make_world(tmp_path)
    lines = [
        [line for line in (tmp_path / f"{language}.txt").read_text().split("\n") if line]
        for language in ("en", "xx")
    ]
    table = "".join(f"{line}\t{translation}\n" for line, translation in zip(*lines, strict=True))
    (tmp_path / "pairs.tsv").write_text(table)
    overrides = ["systems=[bl_small]", "adapt.steps=0", "adapt.warmup_steps=0"]
    overrides += ["adapt.snapshot_every=null", "adapt.initialisation=aligned"]
    with pytest.raises(UserError, match=r"initialisation aligned: data.pairs has no files for xx"):
        load_recipe(recipe, overrides)
    overrides.append(f"data.pairs.xx={tmp_path}/pairs.tsv")
    prepare(recipe, *overrides)
    done("pretrain", recipe, *overrides)
    done("adapt", recipe, *overrides)

    source = load_model(tmp_path / "run/pretrain/bl_small/model")[1].embeddings
    folder = tmp_path / "run/adapt/bl_small/xx"
    pack = load_adaptation(folder / "pack").embeddings
    first = load_adaptation(folder / "snapshots/step-00000000").embeddings
    assert pack["tokens"].equal(first["tokens"]) and pack["bias"].equal(first["bias"])

    tokenizers = [open_tokenizer(tmp_path / "run/tokenizer" / name) for name in ("en", "xx")]
    pairs = PairCorpus(tmp_path / "run/corpus/the-pairs-of-xx").pairs
    sides = [
        tokenizer.encode([pair[side] for pair in pairs])
        for side, tokenizer in enumerate(tokenizers)
    ]
    likeliest = model_one(*sides, rounds=5)
    shared = {*tokenizers[0].pieces()} & {*tokenizers[1].pieces()}
    looked_at = 0
    for id, piece in enumerate(tokenizers[1].pieces()):
        of_piece = sorted((p, e) for (e, f), p in likeliest.items() if f == id)[-5:]
        if of_piece and piece not in shared:
            weights = torch.tensor([p * p for p, _ in of_piece])
            parts = source["tokens"][[e for _, e in of_piece]]
            row = (weights[:, None] * parts).sum(0)
            row *= parts.norm(dim=1).mean() / row.norm()
            torch.testing.assert_close(pack["tokens"][id], row, rtol=1e-3, atol=1e-5)
            bias = (weights * source["bias"][[e for _, e in of_piece]]).sum() / weights.sum()
            torch.testing.assert_close(pack["bias"][id], bias, rtol=1e-3, atol=1e-6)
            looked_at += 1
    assert looked_at > 20
