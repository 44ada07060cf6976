"""Vocabularies that are extended: what a new language gets, and that the base's text is cut as
before.
"""

from collections import Counter

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer

from ds_minimodel.common.files import write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.text.corpus import count_words
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers import extension
from ds_minimodel.tokenizers.extension import (
    count_new_pieces,
    extend_tokenizer,
    read_extension,
)
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, TokenizerJson, open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.byte_pairs import BYTES, bpe, of_bytes
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

ENGLISH = [
    "the small boat sees the great harbour",
    "a new wind finds the old bridge",
    "great boats, small bridges",
]
GERMAN = (
    "das kleine Boot sieht den großen Hafen|ein neuer Wind findet die alte Brücke|kleine Boote, "
    "große Brücken"
).split("|")
FRENCH = [
    "le petit bateau voit le grand port",
    "un nouveau vent trouve le vieux pont",
    "petit vent, grand bateau",
]
ROWS = 430
NEW = 25


def write_lines(path, lines):
    path.write_text("\n".join(lines * 5) + "\n")
    return path


def words_of(path):
    return count_words(read_documents([path]))


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / "en.txt", ENGLISH), write_lines(tmp_path / "de.txt", GERMAN)


@pytest.fixture
def base(tmp_path):
    return write_base("byte-level", tmp_path / "base")


def decoded(tokenizer, texts):
    return Tokenizer.from_file(str(tokenizer.path)).decode_batch(
        tokenizer.encode(texts), skip_special_tokens=False
    )


def extended(base, texts, out, number=NEW, *, guard=True):
    extend_tokenizer(
        base, ROWS, words_of(texts[1]), words_of(texts[0]) if guard else {}, out, number
    )
    return open_tokenizer(out)


def test_pieces_of_the_source_text_are_left_out(base, texts, tmp_path):
    write_lines(texts[1], [*GERMAN, *["harbour"] * 9])  # the most frequent word of all
    assert " harbour".replace(" ", "▁") not in extended(base, texts, tmp_path / "guarded").pieces()
    alone = extended(base, texts, tmp_path / "alone", guard=False)
    assert alone.encode(ENGLISH) != open_tokenizer(base).encode(ENGLISH)


def test_a_vocabulary_without_a_tokenizer_json_is_refused(texts, tmp_path):
    train_tokenizer([texts[0]], tmp_path / "unigram", 30, 1.0, 5000)
    with refuses("a SentencePiece vocabulary is not extended; use tokenizer.vocabulary: repl"):
        extended(tmp_path / "unigram", texts, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_more_pieces_than_the_text_supports(base, texts, tmp_path):
    words = r"tokenizer.vocab_size=9000: .* has only \d+ tokens beside the base's, of which \d+ "
    with refuses(words):
        extended(base, texts, tmp_path / "new", 9000)


# Vocabularies of the other kinds, trained here on English with Hugging Face's library.

GREEK = ["το μικρό καράβι", "το καράβι", "μικρό, καράβι"]


def unigram(lines, **settings):
    """As XLM-R's and T5's; with `byte_fallback` as those of some Llamas."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.decoder = decoders.Metaspace()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "</s>", "<unk>", *(BYTES if settings else [])]
    made.train_from_iterator(
        lines, trainers.UnigramTrainer(vocab_size=320, special_tokens=special, unk_token="<unk>")
    )
    return of_bytes(made, **settings) if settings else made


def word_piece(lines):
    """As BERT's, uncased."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.decoder = decoders.WordPiece()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        lines, trainers.WordPieceTrainer(vocab_size=70, special_tokens=["<s>", "</s>", "<unk>"])
    )
    return made


def byte_level(lines):
    """As those that are trained here, with a token behind the pieces, as Llama 3 and Qwen have
    theirs.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    options = {
        "special_tokens": ["<s>", "</s>", "<unk>"],
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
    }
    made.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=300, show_progress=False, **options)
    )
    made.add_special_tokens(["<|end|>"])
    return made


def metaspace(**settings):
    return {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "split": False, **settings}}


KINDS = {
    "unigram": unigram,
    "unigram-bytes": lambda lines: unigram(lines, **metaspace(prepend_scheme="always", split=True)),
    "word-piece": word_piece,
    "byte-level": byte_level,
    "bpe-bytes": bpe,
    "bpe-first": lambda lines: bpe(lines, normalizer=None, **metaspace(prepend_scheme="first")),
}


def write_base(kind, folder, lines=ENGLISH, changed=lambda made: None):
    """A base of a kind whose embeddings have more rows than it has ids: the folder."""
    made = KINDS[kind]([*lines, "abcdefghijklmnopqrstuvwxyzßöüBHW ,"] * 5)
    changed(made)
    folder.mkdir()
    made.save(str(folder / JSON_FILE))
    ids = {
        role: made.token_to_id(string)
        for role, string in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
    }
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", '
        '"unk_token": "<unk>"}'
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write_manifest(
        folder, kind="tokenizer", **Vocabulary(max(made.get_vocab().values()) + 1, **ids).facts()
    )
    return folder


@pytest.fixture(params=KINDS)
def other(request, tmp_path):
    return write_base(request.param, tmp_path / "other")


but_byte_level = pytest.mark.parametrize(
    "other", sorted(KINDS.keys() - {"byte-level"}), indirect=True
)


def test_a_base_of_any_kind_is_extended(other, texts, tmp_path):
    write_lines(texts[1], [*GERMAN, *["ungreat"] * 9])
    old = open_tokenizer(other)
    new = extended(other, texts, tmp_path / "new")
    # Words of their later lines have no space that is put before a text.
    documents = [
        *ENGLISH,
        "\n".join(ENGLISH),
    ]
    assert new.encode(documents) == old.encode(documents)
    facts = {
        "num_base": ROWS,
        "roundtrip_counterexample": TokenizerJson(new.path).lost_text(new.vocabulary),
    }
    assert new.vocabulary == Vocabulary(ROWS + NEW, **old.vocabulary.special, **facts)
    assert "\\x00<" not in str(facts)
    assert new.scored_after == old.vocabulary.bos
    assert decoded(new, GERMAN) == decoded(old, GERMAN)
    for before, after in zip(old.encode(GERMAN), new.encode(GERMAN), strict=True):
        assert len(after) < len(before)
        assert max(after) >= ROWS
        assert all(id < old.vocabulary.size or id >= ROWS for id in after)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert theirs(GERMAN, add_special_tokens=False)["input_ids"] == new.encode(GERMAN)
    assert len(theirs) == ROWS + NEW, "as many as there are rows, by which embeddings are resized"
    assert theirs.all_special_ids == AutoTokenizer.from_pretrained(other).all_special_ids
    assert theirs.chat_template == "{{ messages }}"
    runners = [Tokenizer.from_file(str(tokenizer.path)) for tokenizer in (old, new)]
    assert len({runner.token_to_id("<|end|>") for runner in runners}) == 1


def test_counts_of_any_kind_are_those_of_its_own_cut(other, texts, tmp_path):
    found = read_extension(other, words_of(texts[1]), words_of(texts[0]), NEW)
    new = extended(other, texts, tmp_path / "new")
    lines = texts[1].read_text().split("\n")
    for number, cut in ((0, open_tokenizer(other)), (NEW, new)):
        assert found.tokens_with(number)[0] == sum(map(len, cut.encode(lines)))
    uses = Counter(new._string(id) for ids in new.encode(lines) for id in ids)
    for piece, count in zip(found.pieces, found.counts, strict=True):
        within = sum(
            times for longer, times in uses.items() if piece.string.removeprefix("##") in longer
        )
        assert 2 <= count <= within
        assert uses[piece.string] <= count
    assert [*found.counts] == sorted(found.counts, reverse=True)


def test_characters_that_a_base_lacks_become_pieces(other, texts, tmp_path):
    """Of some bases they are bytes, of others unknown."""
    text = texts[0], write_lines(tmp_path / "el.txt", GREEK)
    number = len(read_extension(other, words_of(text[1]), words_of(text[0]), 1000).pieces)
    old = open_tokenizer(other)
    new = extended(other, text, tmp_path / "new", number)
    assert new.encode(ENGLISH) == old.encode(ENGLISH)
    is_bert = "##ο" in map(new._string, range(ROWS, ROWS + number))
    normal = normalizers.BertNormalizer().normalize_str if is_bert else str
    assert [line.replace(" ,", ",") for line in decoded(new, GREEK)] == [*map(normal, GREEK)]
    assert all(not new._string(id).startswith("<0x") for ids in new.encode(GREEK) for id in ids)
    if old.vocabulary.unk in sum(old.encode(GREEK), []):
        with refuses(r"\d+% of the text stays unknown to it with 3 new tokens; take more"):
            extended(other, text, tmp_path / "few", 3)


def test_shares_of_what_is_unknown_are_of_bytes(other, texts, tmp_path):
    """However few tokens <unk> it becomes; what is lost without one counts as well, and bytes are
    known.
    """
    lines = [ENGLISH[0], "ሰላም ለዓለም ሁሉ"] * 5
    (tmp_path / "am.txt").write_text("\n".join(lines))
    size = sum(len(word.encode()) for line in lines for word in line.split())
    base = open_tokenizer(other)
    lost = sum(number for line in lines for _, number in base.unknown(line, base.encode([line])[0]))
    has_bytes = read_json(base.path)["model"].get("byte_fallback") or base.split
    assert lost == (
        0 if has_bytes else sum(len(word.encode()) for line in lines[1::2] for word in line.split())
    )
    _, share = read_extension(other, words_of(tmp_path / "am.txt"), {}, 1000).tokens_with(0)
    assert share == pytest.approx(lost / size, abs=0.1)
    assert bool(share) == bool(lost)


def test_characters_that_nothing_stands_for_are_unknown(tmp_path):
    """Of a BPE without <unk> and without bytes no token shows that they were there."""
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "</s>": 2}, []))
    made.save(str(tmp_path / JSON_FILE))
    write_manifest(tmp_path, kind="tokenizer", **Vocabulary(3, eos=2).facts())
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode(["aሰb ü"]) == [[0, 1]]
    assert tokenizer.unknown("aሰb ü", [0, 1]) == [(1, 3), (4, 2)]


@but_byte_level
def test_what_the_base_keeps_apart_is_not_joined(other, texts, tmp_path):
    """Digits, and signs from words: its pieces have none side by side, though nothing parts text so
    before. So it is of one that was extended, with the numbers in the names of unused tokens.
    """
    extended(other, texts, tmp_path / "once")
    write_lines(texts[1], [*GERMAN, *["Wind, 2026 2026"] * 9])
    for base in (other, tmp_path / "once"):
        for piece in read_extension(base, words_of(texts[1]), {}, 1000).pieces:
            string = piece.string.removeprefix("##")
            assert len(string) == 1 or not any(sign.isdigit() or sign == "," for sign in string)


def test_added_tokens_of_any_kind_stay(texts, tmp_path):
    """Behind the model's pieces, with a space in it or not; and no text becomes a special one."""
    tokens = [AddedToken("<|start|>", special=True), "<a b>", "Hafen"]
    for kind in KINDS:
        other = write_base(kind, tmp_path / kind, changed=lambda made: made.add_tokens(tokens))
        write_lines(texts[1], [*GERMAN, "<a b> Hafen <a b>"])
        old = open_tokenizer(other)
        new = extended(other, texts, tmp_path / f"{kind}-new")
        assert {old.encode(["<a b>"])[0][-1], new.encode(["<a b>"])[0][-1]} == {
            old.vocabulary.size - 2
        }
        assert new.encode(["Hafen"])[0][-1] == old.vocabulary.size - 1
        assert old.vocabulary.size - 3 not in new.encode(["a<|start|>b"])[0]
        theirs = AutoTokenizer.from_pretrained(tmp_path / f"{kind}-new")
        assert theirs("<a b>", add_special_tokens=False)["input_ids"] == new.encode(["<a b>"])[0]


PARTS_WORDS = {"harb": {"single_word": True}, "brid": {"normalized": False}, "→": {"special": True}}


@pytest.mark.parametrize("token", PARTS_WORDS)
def test_added_tokens_that_would_part_old_words_are_refused(texts, tmp_path, token):
    added = AddedToken(token, **PARTS_WORDS[token])
    kind = "bpe-bytes" if token == "→" else "word-piece"
    write_base(kind, tmp_path / "base", changed=lambda made: made.add_tokens([added]))
    write_lines(texts[0], [*ENGLISH, "A BRIDGE →"])
    for guard in (True, False)[: 1 + added.special]:
        with refuses(f"(?i)added token would part ' {token}|'{token}' becomes the special id"):
            extended(tmp_path / "base", texts, tmp_path / "new", guard=guard)


def test_a_longer_match_does_not_cut_a_word_of_the_source_otherwise(tmp_path):
    """ "unh" is no pair in "un ##happy", and would be its longest match."""
    letters = "abcdehlnopuy"
    pieces = [
        "<s>",
        "</s>",
        "<unk>",
        "un",
        "##happy",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]

    def short(lines):
        made = Tokenizer(
            models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="<unk>")
        )
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        return made

    KINDS["short"] = short
    base = write_base("short", tmp_path / "base")
    del KINDS["short"]
    texts = (
        write_lines(tmp_path / "en.txt", ["unhappy"]),
        write_lines(tmp_path / "xx.txt", ["unh unha unhb unhc"]),
    )
    guarded = extended(base, texts, tmp_path / "guarded", 1, guard=True)
    alone = extended(base, texts, tmp_path / "alone", 1, guard=False)
    assert "▁unh" in alone.pieces()
    assert "▁unh" not in guarded.pieces()
    assert guarded.encode(["unhappy"]) == [[3, 4]] != alone.encode(["unhappy"])


@but_byte_level
def test_new_pieces_begin_as_they_are_cut_inside_a_word(other, texts, tmp_path):
    old = open_tokenizer(other)
    new = extended(other, texts, tmp_path / "new")
    for id, ids in enumerate(old.cut(new.pieces()[ROWS:], extend_this=True), ROWS):
        first, *others = map(old._string, ids)
        assert others
        assert first + "".join(piece.removeprefix("##") for piece in others) == new._string(id)


WORD = " greatboats"  # which no text here has


def with_guard(base, texts, out, guard):
    extend_tokenizer(
        base,
        ROWS,
        text=words_of(texts[1]),
        kept_text=words_of(texts[0]),
        out=out,
        new_pieces=NEW,
        guard=guard,
    )
    return open_tokenizer(out)


def test_a_piece_that_would_cut_a_guarded_word_is_left_out(other, texts, tmp_path):
    planted = [
        "ein greatboat greatboat"
    ] * 40  # frequent in the new language, inside the other's word
    write_lines(texts[1], [*GERMAN, *planted])
    line = [f"a{WORD} b"]
    before = open_tokenizer(other).encode(line)
    unguarded = with_guard(other, texts, tmp_path / "unguarded", {})
    assert unguarded.encode(line) != before
    guarded = with_guard(other, texts, tmp_path / "guarded", {WORD: 1e-2})
    assert guarded.encode(line) == before
    assert len(guarded.encode(GERMAN[:1])[0]) < len(open_tokenizer(other).encode(GERMAN[:1])[0])
    # A word that is as rare as a name may be cut by a piece that is frequent.
    rare = with_guard(other, texts, tmp_path / "rare", {WORD: 1e-6})
    assert rare.encode(line) == unguarded.encode(line)


def test_a_piece_that_a_short_text_has_often_is_no_frequent_one(other, texts, tmp_path):
    write_lines(texts[1], [*GERMAN, *["greatboat"] * 3])  # 15 of a hundred words
    line = [f"a{WORD} b"]
    before = open_tokenizer(other).encode(line)
    assert with_guard(other, texts, tmp_path / "unguarded", {}).encode(line) != before
    guarded = with_guard(other, texts, tmp_path / "guarded", {WORD: 1e-6})
    assert guarded.encode(line) == before


def test_pieces_of_another_script_have_a_letter_of_it(other, texts, tmp_path):
    latin = "greatwind smallbridge"
    mixed = [*GREEK * 9, *[latin] * 4]
    words = words_of(write_lines(tmp_path / "el.txt", mixed))
    pieces = read_extension(other, words, words_of(texts[0]), 60).pieces
    joined = [piece.string.strip("#▁Ġ") for piece in pieces if len(piece.parts) > 1]
    assert len(joined) > 5
    assert not any(string in latin for string in joined)


def test_as_many_pieces_as_are_counted_can_be_asked_for(tmp_path):
    pieces = ["<unk>", *"abcd", *(f"##{letter}" for letter in "abcd")]
    made = Tokenizer(
        models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / JSON_FILE))
    text = dict(aabba=6, dbbdabd=5, addbbdb=5, bdcd=4, cacdbda=4, dac=3, cdbcbdd=3)
    text |= dict(dbaabca=3, acaa=2, cabda=2, caddda=1, bbbd=1)
    kept = {"cbbda": 1}

    found = len(read_extension(tmp_path, text, kept, 50).pieces)
    count = count_new_pieces(tmp_path, text, kept, 50)

    assert len(read_extension(tmp_path, text, kept, found).pieces) < found
    assert len(read_extension(tmp_path, text, kept, count).pieces) == count


def test_what_was_counted_is_not_chosen_again(base, texts, tmp_path, monkeypatch):
    words = words_of(texts[1])
    kept = words_of(texts[0])
    extend_tokenizer(base, ROWS, words, kept, tmp_path / "alone", new_pieces=NEW)

    assert count_new_pieces(base, words, kept, NEW) == NEW
    with monkeypatch.context() as patched:
        patched.delattr(extension, "_Candidates")
        extend_tokenizer(base, ROWS, words, kept, tmp_path / "counted", new_pieces=NEW)
        # Of another text nothing is counted.
        with pytest.raises(NameError):
            extend_tokenizer(base, ROWS, words, {}, tmp_path / "other", new_pieces=NEW)

    written = [(tmp_path / name / JSON_FILE).read_bytes() for name in ("alone", "counted")]
    assert written[0] == written[1]


def test_a_common_word_keeps_its_pieces_inside_words_that_no_list_has(other, texts, tmp_path):
    planted = ["das Xreatboats", "das Yreatboats"] * 20  # such as a name in a program
    write_lines(texts[1], [*GERMAN, *planted])
    line = ["a zgreatboats b"]
    before = open_tokenizer(other).encode(line)
    unguarded = with_guard(other, texts, tmp_path / "unguarded", {})
    assert unguarded.encode(line) != before
    guarded = with_guard(other, texts, tmp_path / "guarded", {WORD: 1e-2})
    assert guarded.encode(line) == before


def test_a_list_of_words_lets_no_piece_join_signs(texts, tmp_path):
    lines = ["(s) and (t), (s) or (t)", *ENGLISH]  # so that signs stand beside letters in pieces
    unigram(lines * 9).save(str(tmp_path / JSON_FILE))
    words = words_of(write_lines(texts[1], [*GERMAN, "die (Boot) und (Hafen)", "die (Boot)"]))

    def with_signs(guard):
        pieces = read_extension(tmp_path, words, {}, 60, guard).pieces
        joined = [piece.string for piece in pieces if len(piece.parts) > 1]
        assert joined
        return [string for string in joined if "(" in string or ")" in string]

    assert with_signs({}) and not with_signs({" zzz": 1e-6})
