"""Windows over contexts, and answers out of scores, against a plain definition and by hand."""

import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from ds_minimodel.common.files import write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.evaluation import qa
from ds_minimodel.evaluation.qa import Question, encode_questions
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, PROBES, open_tokenizer


def ask(context, answer, name="q", text="abc?"):
    start = context.index(answer)
    return Question(name, text, context=context, answers=(answer,), starts=(start,))


def window_tokens(windows, index):
    bounds = windows.examples.bounds
    return windows.examples.tokens[bounds[index] : bounds[index + 1]].tolist()


def read_targets(questions, windows):
    """Answers of a model that is always right: it scores the targets 1 and all else 0."""
    width = int(windows.examples.lengths.max())
    all_of_them = np.arange(len(windows.examples))
    logits = np.zeros((len(windows.examples), width, 2), dtype=np.float32)
    for side in (0, 1):
        logits[all_of_them, windows.examples.targets[:, side], side] = 1
    halves = [(index, logits[index]) for index in np.array_split(all_of_them[::-1], 2)]
    return qa.find_answers(questions, windows, halves, answer_length=width)


LONG = " ".join(f"abc{chr(97 + i % 26)} def ghi日 {i}" for i in range(60))


def test_windows_cover_the_context_at_each_stride(tokenizer):
    question = ask(LONG, "9 abck", text="abc def")
    ids, _ = tokenizer.encode_with_offsets(LONG)
    asked = tokenizer.encode(["abc def"])[0]
    windows = encode_questions(tokenizer, [question], max_length=60, question_length=2, stride=20)
    head = [0, *asked[:2], 2]
    room = 60 - len(head) - 1
    count = 1 + -(-(len(ids) - room) // 20)
    assert len(windows.examples) == count > 5
    assert set(windows.prefix) == {len(head)}
    for index in range(count):
        assert window_tokens(windows, index) == [*head, *ids[20 * index : 20 * index + room], 2]


def test_the_target_is_position_zero_where_the_window_lacks_part_of_the_answer(tokenizer):
    answer = "30 abcf def ghi日 31 abcg"
    windows = encode_questions(
        tokenizer, [ask(LONG, answer)], max_length=60, question_length=8, stride=10
    )
    _, offsets = tokenizer.encode_with_offsets(LONG)
    start = LONG.index(answer)
    inside = [i for i, (a, b) in enumerate(offsets) if b > start and a < start + len(answer)]
    prefix = int(windows.prefix[0])
    room = 60 - prefix - 1
    seen = []
    for index, (first, last) in enumerate(windows.examples.targets.tolist()):
        begin = 10 * index
        holds = begin <= inside[0] and inside[-1] < begin + room
        shift = prefix - begin
        assert (first, last) == ((inside[0] + shift, inside[-1] + shift) if holds else (0, 0))
        seen.append(holds)
    assert 2 <= sum(seen) < len(seen)


KINDS = {  # model, trainer, normaliser, pre-tokenizer
    "modernbert": (
        models.BPE(),
        trainers.BpeTrainer,
        normalizers.NFC(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
    "xlm-r": (
        models.Unigram(),
        trainers.UnigramTrainer,
        normalizers.NFKC(),
        pre_tokenizers.Metaspace(),
    ),
    "uncased bert": (
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    ),
}


@pytest.fixture(scope="module", params=["made here", *KINDS])
def of_kind(request, tokenizer_folder, tmp_path_factory):
    if request.param == "made here":
        return open_tokenizer(tokenizer_folder)
    model, trainer, normalizer, pre_tokenizer = KINDS[request.param]
    special = ["<s>", "</s>", "<unk>"]
    folder = tmp_path_factory.mktemp("kind")
    made = Tokenizer(model)
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    unknown = {"unk_token": "<unk>"} if request.param == "xlm-r" else {}
    alphabet = {} if unknown else {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    options = {"vocab_size": 900, "special_tokens": special, "show_progress": False}
    made.train_from_iterator(PROBES, trainer(**options, **unknown, **alphabet))
    made.save(str(folder / JSON_FILE))
    write_manifest(
        folder, kind="tokenizer", **Vocabulary(made.get_vocab_size(), bos=0, eos=1, unk=2).facts()
    )
    return open_tokenizer(folder)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_a_right_answer_is_the_whole_word_however_marks_are_written(of_kind, form):
    """Each word of many languages, alone between two others, is what its own tokens give back."""
    words = {
        word
        for text in PROBES
        for word in unicodedata.normalize(form, text).split()
        if word[0].isalpha()
    }
    words = {word for word in words if word.isprintable() and not {*"▁\ufffd"} & {*word}}
    questions = [ask(f"a {word} b", word, name=word) for word in sorted(words)]
    assert len(questions) > 300
    found = read_targets(questions, encode_questions(of_kind, questions))
    assert {word: found[word] for word in words} == {word: word for word in words}


def plain_best_span(start_logits, end_logits, first, last, n_best, answer_length):
    """The definition, one window: the best of the n-best starts and ends in [first, last]."""
    inside = range(first, last + 1)
    starts = sorted(inside, key=lambda i: -start_logits[i])[:n_best]
    ends = sorted(inside, key=lambda i: -end_logits[i])[:n_best]
    spans = [
        (start_logits[s] + end_logits[e], s, e)
        for s in starts
        for e in ends
        if s <= e < s + answer_length
    ]
    return max(spans, default=(-np.inf, 0, 0))


@pytest.mark.parametrize("n_best, answer_length", [(20, 30), (5, 3), (2, 1), (1, 30), (500, 500)])
def test_best_spans_equal_the_plain_definition(tokenizer, n_best, answer_length):
    questions = [ask(LONG, "7 abci", "a"), ask("日本人口大小", "人口", "b")]
    windows = encode_questions(tokenizer, questions, max_length=60, question_length=8, stride=20)
    draw = np.random.default_rng(0)
    index = draw.permutation(len(windows.examples))
    logits = draw.standard_normal((2, len(index), 64)).astype(np.float32)
    first, last, score = qa.best_spans(
        *logits, windows=windows, index=index, answer_length=answer_length, n_best=n_best
    )
    for row, window in enumerate(index):
        end = int(windows.examples.lengths[window]) - 2
        expected = plain_best_span(
            logits[0, row],
            logits[1, row],
            first=int(windows.prefix[window]),
            last=end,
            n_best=n_best,
            answer_length=answer_length,
        )
        assert (score[row], first[row], last[row]) == expected


def test_the_best_window_wins_and_the_earlier_of_equals(tokenizer):
    questions = [ask(LONG, "7 abci", "a"), ask("abc def", "abc", "b")]
    windows = encode_questions(tokenizer, questions, max_length=60, question_length=8, stride=20)
    logits = np.zeros((len(windows.examples), 60, 2))

    def answer_of(question):
        return qa.find_answers(questions, windows, [(np.arange(len(logits)), logits)])[question]

    _, offsets = tokenizer.encode_with_offsets(LONG)
    assert answer_of("a") == LONG[slice(*offsets[0])].strip()
    logits[2, windows.prefix[2]] = 3
    assert answer_of("a") == LONG[slice(*offsets[40])].strip()
    logits[:] = -np.inf
    assert answer_of("a") == answer_of("b") == ""


def scores(predictions, language=None, **accepted):
    """Exact match and F1 of {question: answer} against the accepted ones."""
    questions = [
        Question(name, "?", context=" ".join(texts), answers=texts, starts=(0,) * len(texts))
        for name, texts in accepted.items()
    ]
    found = qa.score_qa(predictions, questions, language)
    return found["exact_match"], pytest.approx(found["f1"], abs=1e-9)


@pytest.mark.parametrize(
    "language, predicted, answer, exact, f1",
    [
        # SQuAD 1.1's script: only ASCII's punctuation goes, then English articles.
        (None, "The Cat.", "a cat", 100, 100),
        (None, "“Paris”", "Paris", 0, 0),
        (None, "das Haus", "Haus", 0, 200 / 3),
        # MLQA's: all punctuation goes, each language has articles of its own, Chinese is compared
        # by character.
        ("en", "“The theatre”", "theatre", 100, 100),
        ("de", "Der Strasse", "STRASSE", 100, 100),
        ("es", "unas casas", "¿casas?", 100, 100),
        ("vi", "của nhà", "nhà", 100, 100),
        ("ar", "الكتاب", "كتاب", 100, 100),
        ("hi", "एक घर।", "एक घर", 100, 100),
        ("zh", "北京市", "北京", 0, 80),
        ("zh", "中国A股、1990年", "中 国 A 股 1990 年", 100, 100),
        ("fr", "the cat", "cat", 0, 200 / 3),
    ],
)
def test_answers_are_compared_by_the_official_rules(language, predicted, answer, exact, f1):
    assert scores({"q": predicted}, language, q=(answer,)) == (exact, f1)
    # The best of several accepted answers counts.
    assert scores({"q": predicted}, language, q=("other", answer)) == (
        exact,
        f1,
    )


def test_unanswered_and_empty_answers_score_nothing():
    assert scores({"a": "x", "b": ""}, a=("x",), b=("y",), c=("z",)) == (
        pytest.approx(100 / 3),
        100 / 3,
    )
