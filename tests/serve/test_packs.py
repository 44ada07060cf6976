"""A pack shows what it is; what is damaged, mixed up or of another body is refused in one line."""

import shutil

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, read_json, write_manifest
from ds_minimodel.serve.packs import check, facts_of, plug


@pytest.fixture
def pack(family, tmp_path):
    """A copy of the German pack, to be damaged."""
    return shutil.copytree(family.de, tmp_path / "pack")


def test_facts(family):
    facts = facts_of(family.zh)
    assert (facts["language"], facts["space"], facts["steps"], facts["eflops"]) == ("zh", family.space, 7, 0.5)
    assert facts["vocabulary"] == 30 and facts["hidden size"] == 16 and facts["initialisation"] == "overlap"
    assert facts["replaces of the body"] == ["body.positions"] and "embeddings.safetensors" in facts["files"]


def test_whole_packs_fit_their_family(family):
    for body in ("body", "classification", "qa"):
        check(family.de, family.root / body)
        check(family.zh, family.root / body)


def test_a_pack_of_another_body(family, other_family):
    check(other_family.de)
    with pytest.raises(UserError, match="trained for embedding space fedcba9876543210, the body has 0123456789abcdef"):
        check(other_family.de, family.body)


@pytest.mark.parametrize("file", ["embeddings.safetensors", "tokenizer.model"])
def test_a_damaged_file(pack, file):
    content = bytearray((pack / file).read_bytes())
    content[len(content) // 2] ^= 1
    (pack / file).write_bytes(content)
    with pytest.raises(UserError, match=rf"{file}: damaged"):
        check(pack)
    (pack / file).write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{file}: missing or of another size"):
        facts_of(pack)


def test_a_vocabulary_of_another_pack(family, pack):
    """Its manifest is in order again, as if made by hand."""
    from ds_minimodel.data.tokenizer import train_tokenizer

    train_tokenizer([family.root / "de.txt"], pack.parent / "tok", 31, 1.0, 1000)
    shutil.copyfile(pack.parent / "tok/tokenizer.model", pack / "tokenizer.model")
    facts = read_json(pack / MANIFEST)
    del facts["files"]
    write_manifest(pack, **facts)
    with pytest.raises(UserError, match="its vocabulary has 31 pieces, its embeddings 33 rows"):
        check(pack, family.body)


def test_what_is_no_pack(family, tmp_path):
    with pytest.raises(UserError, match="a body, not a language pack"):
        check(family.body)
    with pytest.raises(UserError, match="manifest.json: no such file"):
        check(tmp_path)


def test_plugged_together_they_are_whole_and_nothing_is_overwritten(family, other_family, tmp_path):
    plug(family.pair, family.de, tmp_path / "out")
    check(tmp_path / "out/pack", tmp_path / "out/body")
    with pytest.raises(UserError, match="out: exists"):
        plug(family.pair, family.zh, tmp_path / "out")
    with pytest.raises(UserError, match="embedding space"):
        plug(family.pair, other_family.de, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
