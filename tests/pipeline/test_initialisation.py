"""Step 2 from another initialisation."""

import pytest
import torch

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.common.files import read_manifest
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import is_pending
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json
from tests.helpers.foreign_models import save_llama
from tests.helpers.references import model_one
from tests.helpers.refusals import refuses

from ..forks import done
from .conftest import copy_of, make_world, prepare

pytestmark = pytest.mark.slow


def test_step_2_records_it_and_trains_on(world, tmp_path):
    recipe = copy_of(world, tmp_path)
    arguments = ("adapt", recipe, "systems=[bl_small]", "adapt.initialisation=random")
    with refuses("made from another recipe"):
        is_pending(STEPS["adapt"], load_recipe(*arguments[1:2], arguments[2:]))
    done(*arguments, "--rebuild")
    folder = tmp_path / "copy/run/adapt/bl_small/xx"
    first = folder / "snapshots/step-00000000"
    last = folder / "pack"
    assert all(read_manifest(pack)["initialisation"] == "random" for pack in (first, last))
    before = load_adaptation(first)
    after = load_adaptation(last)
    assert not before.embeddings["tokens"][5].equal(after.embeddings["tokens"][5])
    assert not after.update
    record = read_json(folder.parent / "xx.job.json")
    assert record["inputs"]["adapt"]["initialisation"] == "random"


def write_pairs_of_text(folder):
    """Write the lines of a world's texts beside each other."""
    texts = [(folder / f"{language}.txt").read_text().split("\n") for language in ("en", "xx")]
    pairs = [pair for pair in zip(*texts, strict=True) if all(pair)]
    (folder / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))


def pieces_of_the_loop(folder):
    """{id of a piece that the source lacks: (weight, id in the source) of what it is mixed of} by a
    loop over pairs: the squares of the five largest probabilities, and of those as large.
    """
    tokenizers = [open_tokenizer(folder / "run/tokenizer" / name) for name in ("en", "xx")]
    pairs = PairCorpus(folder / "run/corpus/pairs-xx").pairs
    sides = [
        tokenizer.encode([pair[side] for pair in pairs])
        for side, tokenizer in enumerate(tokenizers)
    ]
    likeliest = model_one(*sides, rounds=5)
    known = {*tokenizers[0].pieces()}
    mixed = {}
    for id, piece in enumerate(tokenizers[1].pieces()):
        of_piece = sorted(((p, e) for (e, f), p in likeliest.items() if f == id), reverse=True)
        if of_piece and piece not in known:
            least = of_piece[:5][-1][0] * (1 - 1e-9)
            mixed[id] = [(p * p, e) for p, e in of_piece if p >= least]
    return mixed


def assert_rows_of_the_loop(pack, source, folder, num_base=0):
    """Rows of all tensors of a language are mixed as the loop says; return how many."""
    mixed = pieces_of_the_loop(folder)
    for id, parts in mixed.items():
        shares, ids = map(list, zip(*parts, strict=True))
        weights = torch.tensor(shares) / sum(shares)
        for name in ("tokens", "output", "bias"):
            if name in pack:
                rows = source[name][ids].float()
                row = weights @ rows
                if name != "bias":
                    row *= rows.norm(dim=1).mean() / row.norm()
                torch.testing.assert_close(pack[name][id - num_base], row, rtol=1e-3, atol=1e-5)
    return len(mixed)


def test_pairs_alone_give_a_language_its_embeddings(tmp_path):
    recipe = make_world(tmp_path)
    write_pairs_of_text(tmp_path)
    overrides = ["systems=[bl_small]", "adapt.steps=0", "adapt.warmup_steps=0"]
    overrides += ["adapt.snapshot_every=null", "adapt.initialisation=aligned"]
    with refuses(r"data.pairs: there are no files for xx"):
        load_recipe(recipe, overrides)
    overrides.append(f"data.pairs.xx={tmp_path}/pairs.tsv")
    prepare(recipe, *overrides)
    done(f"pretrain {recipe}", *overrides)
    done(f"adapt {recipe}", *overrides)

    source = load_model(tmp_path / "run/pretrain/bl_small/model")[1].embeddings
    folder = tmp_path / "run/adapt/bl_small/xx"
    pack = load_adaptation(folder / "pack").embeddings
    first = load_adaptation(folder / "snapshots/step-00000000").embeddings
    assert pack["tokens"].equal(first["tokens"])
    assert pack["bias"].equal(first["bias"])

    assert assert_rows_of_the_loop(pack, source, tmp_path) > 20


DECODER = """
workdir: {folder}/run
systems: [bl_base]
base: {folder}/base
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocabulary: extend, vocab_size: 64}}
data: {{workers: 1, text: {{en: {folder}/en.txt, xx: {folder}/xx.txt}},
       pairs: {{xx: {folder}/pairs.tsv}}}}
adapt: {{steps: 0, batch_size: 8, seq_length: 32, warmup_steps: 0, initialisation: aligned}}
finetune: {{seeds: 1, max_length: 48, tasks: {{
  bits: {{kind: bits-per-byte, context_bytes: 48, test: {{xx: {folder}/xx.txt}}}}}}}}
engine: {{precision: fp32, micro_batch_size: 4}}
"""


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_pairs_give_a_decoder_new_tokens_without_a_step(tied, tmp_path):
    recipe = make_world(tmp_path)
    write_pairs_of_text(tmp_path)
    theirs = save_llama(tmp_path / "en.txt", tmp_path / "theirs", "$A", tied=tied)
    refer(theirs, tmp_path / "base", "en")
    recipe.write_text(DECODER.format(folder=tmp_path))
    done(f"run {recipe}")

    assert (tmp_path / "run/report/report.md").is_file()
    source = load_model(tmp_path / "base")[1].embeddings
    pack = load_adaptation(tmp_path / "run/adapt/bl_base/xx/pack").embeddings
    assert {*pack} == ({"tokens"} if tied else {"tokens", "output"})
    assert len(pack["tokens"]) == 64
    assert assert_rows_of_the_loop(pack, source, tmp_path, len(source["tokens"])) > 20
    if not tied:
        assert not torch.allclose(pack["tokens"], pack["output"])
