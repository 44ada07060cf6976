"""What a vocabulary loses of a language, of an uncased WordPiece whose words are known."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from ds_minimodel.common.files import write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.tokenizers.extension import extend_tokenizer
from ds_minimodel.tokenizers.losses import losses_of
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, open_tokenizer
from tests.helpers.refusals import refuses


@pytest.fixture
def uncased(tmp_path):
    pieces = ["[UNK]", "schon", "ποτε", "haus", "##er"]
    made = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(pieces)}))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.save(str(tmp_path / JSON_FILE))
    write_manifest(tmp_path, kind="tokenizer", **Vocabulary(len(pieces), unk=0).facts())
    return open_tokenizer(tmp_path)


def test_words_that_become_one_and_words_that_are_unknown(uncased):
    text = {" schon": 30, "Schön": 10, " ποτέ": 4, " πότε": 6, " haus": 20, "Häuser": 5, " 猫": 25}
    losses = losses_of(uncased, text)
    assert losses.equal == pytest.approx((10 + 4) / 100)
    assert losses.unknown == pytest.approx(25 / 100)


def test_case_and_composition_tell_no_words_apart(uncased):
    losses = losses_of(uncased, {" Haus": 3, "haus": 2, " scho\u0308n": 4, "sch\u00f6n": 1, " ": 9})
    assert losses.equal == 0
    assert losses.unknown == 0


def test_a_language_that_loses_much_is_not_added(uncased, tmp_path):
    text = {" schon": 90, " schön": 10}
    with refuses(r"10 % of the words .* become another; take a base"):
        extend_tokenizer(uncased.path.parent, 9, text, {}, tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()
