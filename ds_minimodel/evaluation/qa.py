"""Extractive question answering: SQuAD 1.1 JSON (MLQA and XQuAD share the form), windows over the
contexts, answers.

Every context token keeps its characters' offsets, and an answer is cut out of the original context
by them. Going through whitespace tokens instead ruins languages that write without spaces: MLQA's
Chinese F1 falls to about 17 (huggingface/transformers#3510, facebookresearch/MLQA#13).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from ds_minimodel.common.config import PositiveInt
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Count, Stored, read_model
from ds_minimodel.evaluation.batches import join
from ds_minimodel.evaluation.kind import (
    Encoded,
    FinetunedConfig,
    FinetunedKind,
    Labels,
    Logits,
    Scores,
)

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer

_FORM = "SQuAD 1.1 has data > paragraphs > qas > answers"

# MLQA's articles (mlqa_evaluation_v1.py); languages that are not here have none.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": r"\sال^|ال",
}
_HAN = re.compile("([\u4e00-\u9fa5])")


class QuestionConfig(FinetunedConfig):
    """What a recipe says of a question-answering task."""

    kind: Literal["qa"]
    question_length: PositiveInt = 64
    """Tokens of a question."""
    stride: PositiveInt = 128
    """Tokens from one window to the next."""
    answer_length: PositiveInt = 30
    """Most tokens of an answer."""
    metric: Literal["squad", "mlqa"] = "squad"
    """Rules of F1 and exact match."""

    scored = {"answer_length", "metric"}

    @property
    def least_length(self) -> int:
        return self.question_length + 4


class QuestionAnswering(FinetunedKind["list[Question]", "Windows", QuestionConfig]):
    """Questions on contexts, answered by a span of the context."""

    name = "qa"
    config = QuestionConfig
    has_labels = False
    reads_start = False
    hugging_face_class = "ForQuestionAnswering"
    head_names = {"out": "qa_outputs"}

    def read(
        self, path: str, task: QuestionConfig, language: str, labels: Labels
    ) -> list[Question]:
        return read_squad(path)

    def labels(self, task: QuestionConfig, source: str) -> None:
        return None

    def encode(
        self,
        tokenizer: Tokenizer,
        records: list[Question],
        task: QuestionConfig,
        max_length: int,
        separators: int = 2,
    ) -> Windows:
        return encode_questions(tokenizer, records, max_length, task.question_length, task.stride)

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        from ds_minimodel.models.trainable import SpanExtractor

        return SpanExtractor(config, vocab_size)

    def num_outputs(self, labels: Labels) -> int:
        return 2  # start and end

    def score(
        self,
        task: QuestionConfig,
        language: str,
        records: list[Question],
        encoded: Windows,
        logits: Logits,
    ) -> Scores:
        answers = find_answers(records, encoded, logits, task.answer_length)
        scores = score_qa(answers, records, language if task.metric == "mlqa" else None)
        return {"score": scores["f1"], "exact_match": scores["exact_match"]}

    def metric(self, task: QuestionConfig) -> str:
        return "F1 by MLQA's rules" if task.metric == "mlqa" else "F1"


# --- Files ---


@dataclass(frozen=True)
class Question:
    """A question on a context.

    starts: first character of each answer in `context`, in code points. Without answers it is asked
    alone.
    """

    id: str
    text: str
    context: str
    answers: tuple[str, ...] = ("",)
    starts: tuple[int, ...] = (0,)


_Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]  # SentencePiece takes NUL for <s>


class _Answer(Stored):
    text: Annotated[_Text, Field(pattern=r"\S")]
    answer_start: Count


class _Asked(Stored):
    id: str
    question: _Text
    answers: Annotated[list[_Answer], Field(min_length=1)]


class _Paragraph(Stored):
    context: _Text
    qas: list[_Asked]


class _Article(Stored):
    paragraphs: list[_Paragraph]


class _Squad(Stored):
    data: list[_Article]


def read_squad(path: str | Path) -> list[Question]:
    """All questions of a file, in its order.

    Raises UserError, naming the place in the file, for a missing or damaged file, a question
    without an answer, an answer that is not where its offset says, and an id that comes twice.
    """
    questions: dict[str, Question] = {}
    for article in read_model(path, _Squad, _FORM).data:
        for paragraph in article.paragraphs:
            context = paragraph.context
            for asked in paragraph.qas:
                where = f"{path}: the question of id {asked.id:.60}"
                for answer in asked.answers:
                    if not context.startswith(answer.text, answer.answer_start):
                        raise UserError(
                            f"{where}: character {answer.answer_start} of the context begins "
                            f"{context[answer.answer_start :][:30]!r}, not with the answer "
                            f"{answer.text[:30]!r}; "
                            "answer_start counts characters (code points) from 0"
                        )
                if asked.id in questions:
                    raise UserError(f"{where} comes a second time")
                texts, starts = zip(
                    *((answer.text, answer.answer_start) for answer in asked.answers), strict=True
                )
                questions[asked.id] = Question(asked.id, asked.question, context, texts, starts)
    if not questions:
        raise UserError(f"{path}: no questions; a task needs some")
    return [*questions.values()]


# --- Windows over the contexts ---


@dataclass(frozen=True)
class Windows(Encoded):
    """W sequences `<s>Q</s>C</s>`, C a piece of the question's context; targets (W, 2) start and
    end.

    question: (W,) number of the question. prefix: (W,) position of C's first token. first: (W,)
    where that token is in char_starts and char_ends, (T,) offsets of all contexts' tokens.
    """

    question: np.ndarray
    prefix: np.ndarray
    first: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    max_length: int = 384,
    question_length: int = 64,
    stride: int = 128,
) -> Windows:
    """Windows of at most `max_length` tokens that start every `stride` tokens of the context.

    Questions are cut to `question_length` tokens. The target is the first answer, or (0, 0), the
    `<s>`, in windows that do not hold all of it (run_squad of BERT; Devlin et al. 2019).
    """
    bos, eos = tokenizer.vocabulary.bounds("question answering")
    asked_B = tokenizer.encode([question.text for question in questions])
    # Context -> (ids, starts, ends, place of its offsets).
    contexts: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, int]] = {}
    sequences: list[np.ndarray] = []
    targets, owner, prefixes, firsts = [], [], [], []
    num_tokens = 0
    for number, (question, asked) in enumerate(zip(questions, asked_B, strict=True)):
        if question.context not in contexts:
            contexts[question.context] = (*_with_offsets(tokenizer, question.context), num_tokens)
            num_tokens += len(contexts[question.context][0])
        ids, starts, ends, place = contexts[question.context]
        head = np.array([bos, *asked[:question_length], eos], dtype=np.int32)
        answer = _answer_tokens(question, starts, ends)
        room = max_length - len(head) - 1
        step = min(stride, room)
        for begin in range(0, max(len(ids) - room, 0) + step, step):
            piece = ids[begin : begin + room]
            sequences.append(np.concatenate([head, piece, head[-1:]]))
            holds_answer = begin <= answer[0] and answer[1] < begin + len(piece)
            targets.append(
                [len(head) - begin + token for token in answer] if holds_answer else [0, 0]
            )
            owner.append(number)
            prefixes.append(len(head))
            firsts.append(place + begin)
    return Windows(
        join(sequences, targets, reads_start=False, second=prefixes),
        np.array(owner),
        np.array(prefixes),
        np.array(firsts),
        *(np.concatenate([context[side] for context in contexts.values()]) for side in (1, 2)),
    )


def _with_offsets(tokenizer: Tokenizer, context: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, first characters and ends of a context, three arrays of the same length.

    Starts and ends never fall from token to token: an empty token (a word's start in the middle of
    what one character normalises to) gets the offsets of its neighbours.
    """
    ids, offsets = tokenizer.encode_with_offsets(context)
    starts, ends = np.array(offsets, dtype=np.int32).reshape(-1, 2).T
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    return np.array(ids, dtype=np.int32), starts, np.maximum.accumulate(ends)


def _answer_tokens(question: Question, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
    """First and last token that share a character with the first answer; -1 twice where no token
    does.

    Several tokens can share a character, and characters that normalise to nothing have no token:
    so the ends are searched for rather than looked up.
    """
    answer, char_start = question.answers[0], question.starts[0]
    char_end = char_start + len(answer.rstrip())
    char_start += len(answer) - len(answer.lstrip())
    first = int(np.searchsorted(ends, char_start, side="right"))
    last = int(np.searchsorted(starts, char_end, side="left")) - 1
    return (first, last) if first <= last else (-1, -1)


# --- Answers out of the scores ---


def find_answers(
    questions: Sequence[Question], windows: Windows, logits: Logits, answer_length: int = 30
) -> dict[str, str]:
    """{question id: its answer, "" where there is none}.

    logits: for all windows, in batches, (index (B,), array (B, S, 2) of the start and the end
    scores). The best window of a question wins, the earlier one of equals; the text is what the
    context has between the tokens' offsets, without space around it.
    """
    first, last = np.zeros((2, len(windows.examples)), dtype=np.int64)
    score = np.zeros(len(windows.examples))
    for index, logits_BS2 in logits:
        first[index], last[index], score[index] = best_spans(
            logits_BS2[..., 0], logits_BS2[..., 1], windows, index, answer_length
        )
    best, answers = np.full(len(questions), -np.inf), {question.id: "" for question in questions}
    shift = windows.first - windows.prefix
    for window, number in enumerate(windows.question):
        if score[window] > best[number]:
            best[number], question = score[window], questions[number]
            begin = windows.char_starts[shift[window] + first[window]]
            end = windows.char_ends[shift[window] + last[window]]
            answers[question.id] = question.context[begin:end].strip()
    return answers


def best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    windows: Windows,
    index: np.ndarray,
    answer_length: int = 30,
    n_best: int = 20,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best answer of each window of a batch: positions of its first and last token, and its score.

    start_logits, end_logits: (B, S) arrays for the windows `index` (B,). The score is the sum of
    the two logits. Considered are the `n_best` best starts and ends inside the context, and spans
    of at most `answer_length` tokens (run_qa of Hugging Face). Where there is none, the score is
    -inf.
    """
    num_rows, width = start_logits.shape
    prefix, lengths = windows.prefix[index], windows.examples.lengths[index]
    position = np.arange(width)
    inside = (position >= prefix[:, None]) & (position < lengths[:, None] - 1)
    starts = _keep_best(np.where(inside, start_logits, -np.inf), n_best)
    ends = _keep_best(np.where(inside, end_logits, -np.inf), n_best)
    rows = np.arange(num_rows)
    first, last = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
    score = np.full(num_rows, -np.inf)
    for extra in range(min(answer_length, width)):  # spans of extra + 1 tokens, all rows at once
        sums = starts[:, : width - extra] + ends[:, extra:]
        begin = sums.argmax(axis=1)
        better = sums[rows, begin] > score
        first[better], last[better] = begin[better], begin[better] + extra
        score[better] = sums[rows, begin][better]
    return first, last, score


def _keep_best(scores: np.ndarray, count: int) -> np.ndarray:
    """`scores` (B, S) with all but the `count` best of each row at -inf."""
    count = min(count, scores.shape[1])
    least = np.partition(scores, -count, axis=1)[:, -count]
    return np.where(scores >= least[:, None], scores, -np.inf)


# --- Scores: official metrics, in percent ---


def score_qa(
    predictions: Mapping[str, str], questions: Sequence[Question], language: str | None = None
) -> Scores:
    """{"exact_match": percent, "f1": percent} of {question id: answer}; an unanswered question
    scores 0.

    language: None for SQuAD 1.1's official script (XQuAD uses it for all languages), else MLQA's
    rules for the language of the answers; languages that MLQA lacks are cut at spaces.
    """
    exact_match = f1 = 0.0
    for question in questions:
        if question.id not in predictions:
            continue
        predicted = answer_words(predictions[question.id], language)
        accepted = [answer_words(answer, language) for answer in question.answers]
        exact_match += predicted in accepted
        f1 += max(_f1(predicted, words) for words in accepted)
    return {"exact_match": 100.0 * exact_match / len(questions), "f1": 100.0 * f1 / len(questions)}


def answer_words(answer: str, language: str | None = None) -> list[str]:
    """Words that are compared: lower case, without punctuation and articles; Chinese by character.

    The official scripts join these by spaces and compare the strings, which is the same.
    """
    bare = "".join(char for char in answer.lower() if char not in string.punctuation)
    if language is not None:
        bare = "".join(char for char in bare if not unicodedata.category(char).startswith("P"))
    articles = _ARTICLES.get(language or "en")
    if articles:
        bare = re.sub(articles, " ", bare)
    if language == "zh":
        bare = _HAN.sub(r" \1 ", bare)
    return bare.split()


def _f1(predicted: list[str], accepted: list[str]) -> float:
    num_same = sum((Counter(predicted) & Counter(accepted)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(accepted)
    return 2 * precision * recall / (precision + recall)
