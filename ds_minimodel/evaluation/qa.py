"""Extractive question answering over files in SQuAD 1.1's form, which MLQA and XQuAD share.

Every token of a context keeps its characters' offsets, by which an answer is cut out of the
original context. Going through whitespace tokens instead ruins languages that write without spaces:
MLQA's Chinese F1 falls to about 17 (huggingface/transformers#3510, facebookresearch/MLQA#13).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

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
    """Section of a recipe for question answering."""

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
    def min_length(self) -> int:
        """Shortest `max_length` at which any example can be encoded."""
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
        """Read the questions of one file."""
        return read_squad(path)

    def labels(self, task: QuestionConfig, source: str) -> None:
        """Return None: answers have no labels."""
        return None

    def encode(
        self,
        tokenizer: Tokenizer,
        records: list[Question],
        task: QuestionConfig,
        max_length: int,
        separators: int = 2,
    ) -> Windows:
        """Encode questions as windows over their contexts."""
        return encode_questions(
            tokenizer,
            records,
            max_length=max_length,
            question_length=task.question_length,
            stride=task.stride,
        )

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return a model that scores where an answer starts and ends."""
        from ds_minimodel.models.trainable import SpanExtractor

        return SpanExtractor(config, vocab_size)

    def num_outputs(self, labels: Labels) -> int:
        """Return 2: the scores of a start and of an end."""
        return 2

    def score(
        self,
        task: QuestionConfig,
        language: str,
        records: list[Question],
        encoded: Windows,
        logits: Logits,
    ) -> Scores:
        """Return the F1 of the answers as "score", and "exact_match"."""
        answers = find_answers(records, encoded, logits, answer_length=task.answer_length)
        scores = score_qa(answers, records, language if task.metric == "mlqa" else None)
        return {"score": scores["f1"], "exact_match": scores["exact_match"]}

    def metric(self, task: QuestionConfig) -> str:
        """Return the name of the F1 by the task's rules."""
        return "F1 by MLQA's rules" if task.metric == "mlqa" else "F1"


# --- Files ---


@dataclass(frozen=True)
class Question:
    """A question on a context.

    The defaults are for a question without known answers.

    Attributes:
        id: That the file has for it.
        text: The question.
        context: Text that has the answer.
        answers: That are accepted.
        starts: First character of each answer in `context`, in code points.
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
    """Read all questions of a file, in its order.

    Raises:
        UserError: The file is missing or damaged, a question has no answer, an answer is not where
            its offset says, or an id comes twice; the message names the place.
    """
    questions: dict[str, Question] = {}
    for article in read_model(path, _Squad, _FORM).data:
        for paragraph in article.paragraphs:
            context = paragraph.context
            for asked in paragraph.qas:
                where = f"{path}: the question of id {asked.id:.60}"
                for answer in asked.answers:
                    start = answer.answer_start
                    if not context.startswith(answer.text, start):
                        raise UserError(
                            f"{where}: character {start} of the context begins "
                            f"{context[start:][:30]!r}, not with the answer {answer.text[:30]!r}; "
                            "answer_start counts characters (code points) from 0"
                        )
                if asked.id in questions:
                    raise UserError(f"{where} comes a second time")
                questions[asked.id] = Question(
                    id=asked.id,
                    text=asked.question,
                    context=context,
                    answers=tuple(answer.text for answer in asked.answers),
                    starts=tuple(answer.answer_start for answer in asked.answers),
                )
    if not questions:
        raise UserError(f"{path}: no questions; a task needs some")
    return [*questions.values()]


# --- Windows over the contexts ---


@dataclass(frozen=True)
class Windows(Encoded):
    """W sequences `<s>Q</s>C</s>`, in which C is a piece of the question's context.

    Their targets are (W, 2), the start and the end of the answer.

    Attributes:
        question: (W,), index of the question.
        prefix: (W,), position of C's first token.
        first: (W,), index of that token in char_starts and char_ends.
        char_starts: (T,), first character of each token of all contexts.
        char_ends: (T,), end of each.
    """

    question: np.ndarray
    prefix: np.ndarray
    first: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray


class _Context(NamedTuple):
    """The tokens of a context.

    Attributes:
        ids: (T,).
        starts: (T,), first characters.
        ends: (T,), ends in characters.
        first_token: How many tokens the contexts before it have.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    first_token: int


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    max_length: int = 384,
    question_length: int = 64,
    stride: int = 128,
) -> Windows:
    """Lay windows over the contexts of questions.

    The target is the first answer, or (0, 0), the `<s>`, in windows that do not hold all of it
    (run_squad of BERT; Devlin et al. 2019).

    Args:
        tokenizer: Of the language.
        questions: With their contexts.
        max_length: Most tokens of a window.
        question_length: Tokens to which questions are cut.
        stride: Tokens of the context from one window's start to the next.

    Returns:
        The windows in the order of the questions.
    """
    bos, eos = tokenizer.vocabulary.bounds("question answering")
    question_ids = tokenizer.encode([question.text for question in questions])
    contexts: dict[str, _Context] = {}
    num_tokens = 0
    sequences: list[np.ndarray] = []
    targets: list[list[int]] = []
    indices: list[int] = []
    prefixes: list[int] = []
    firsts: list[int] = []
    for index, question in enumerate(questions):
        if question.context not in contexts:
            contexts[question.context] = _encode_context(tokenizer, question.context, num_tokens)
            num_tokens += len(contexts[question.context].ids)
        context = contexts[question.context]
        head = np.array([bos, *question_ids[index][:question_length], eos], dtype=np.int32)
        first, last = _answer_tokens(question, context)
        room = max_length - len(head) - 1
        step = min(stride, room)
        for begin in range(0, max(len(context.ids) - room, 0) + step, step):
            piece = context.ids[begin : begin + room]
            sequences.append(np.concatenate([head, piece, head[-1:]]))
            # An answer without tokens has -1 as its first token, which lies before every window.
            holds_answer = begin <= first and last < begin + len(piece)
            shift = len(head) - begin
            targets.append([first + shift, last + shift] if holds_answer else [0, 0])
            indices.append(index)
            prefixes.append(len(head))
            firsts.append(context.first_token + begin)
    return Windows(
        examples=join(sequences, targets, reads_start=False, second=prefixes),
        question=np.array(indices),
        prefix=np.array(prefixes),
        first=np.array(firsts),
        char_starts=np.concatenate([context.starts for context in contexts.values()]),
        char_ends=np.concatenate([context.ends for context in contexts.values()]),
    )


def _encode_context(tokenizer: Tokenizer, text: str, first_token: int) -> _Context:
    """Encode a context with offsets that never fall from token to token.

    An empty token (a word's start in the middle of what one character normalises to) gets the
    offsets of its neighbours.
    """
    ids, offsets = tokenizer.encode_with_offsets(text)
    starts, ends = np.array(offsets, dtype=np.int32).reshape(-1, 2).T
    # No start lies behind a later one, and no end before an earlier one.
    return _Context(
        ids=np.array(ids, dtype=np.int32),
        starts=np.minimum.accumulate(starts[::-1])[::-1],
        ends=np.maximum.accumulate(ends),
        first_token=first_token,
    )


def _answer_tokens(question: Question, context: _Context) -> tuple[int, int]:
    """Return the first and the last token that share a character with the first answer.

    Where no token does, both are -1. Several tokens can share a character, and characters that
    normalise to nothing have no token, so the ends are searched for rather than looked up.
    """
    answer = question.answers[0]
    char_start = question.starts[0] + len(answer) - len(answer.lstrip())
    char_end = question.starts[0] + len(answer.rstrip())
    first = int(np.searchsorted(context.ends, char_start, side="right"))
    last = int(np.searchsorted(context.starts, char_end, side="left")) - 1
    return (first, last) if first <= last else (-1, -1)


# --- Answers out of the scores ---


def find_answers(
    questions: Sequence[Question], windows: Windows, logits: Logits, answer_length: int = 30
) -> dict[str, str]:
    """Return {question id: its answer, "" where there is none}.

    The best window of a question wins, the earlier one of equals; the text is what the context has
    between the tokens' offsets, without space around it.

    Args:
        questions: That were encoded.
        windows: Over their contexts.
        logits: For all windows, in batches: (index (B,), array (B, S, 2) of the scores of starts
            and ends).
        answer_length: Most tokens of an answer.
    """
    num_windows = len(windows.examples)
    first = np.zeros(num_windows, dtype=np.int64)
    last = np.zeros(num_windows, dtype=np.int64)
    score = np.zeros(num_windows)
    for index, logits_BS2 in logits:
        first[index], last[index], score[index] = best_spans(
            logits_BS2[..., 0],
            logits_BS2[..., 1],
            windows=windows,
            index=index,
            answer_length=answer_length,
        )
    best = np.full(len(questions), -np.inf)
    answers = {question.id: "" for question in questions}
    # From a position in a window to one among all contexts' tokens.
    shift = windows.first - windows.prefix
    for window, question_index in enumerate(windows.question):
        if score[window] > best[question_index]:
            best[question_index] = score[window]
            question = questions[question_index]
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
    """Find the best answer of each window of a batch, as run_qa of Hugging Face does.

    Args:
        start_logits: (B, S), of the windows `index`.
        end_logits: (B, S), of the same.
        windows: All windows.
        index: (B,), which of them are in the batch.
        answer_length: Most tokens of an answer.
        n_best: How many of the best starts and ends inside the context are considered.

    Returns:
        Positions (B,) of the answers' first and last tokens, and scores (B,), the sums of the two
        logits; -inf where there is no answer.
    """
    num_rows, width = start_logits.shape
    prefix = windows.prefix[index]
    lengths = windows.examples.lengths[index]
    position = np.arange(width)
    inside = (position >= prefix[:, None]) & (position < lengths[:, None] - 1)
    starts = _keep_best(np.where(inside, start_logits, -np.inf), n_best)
    ends = _keep_best(np.where(inside, end_logits, -np.inf), n_best)
    rows = np.arange(num_rows)
    first = np.zeros(num_rows, dtype=np.int64)
    last = np.zeros(num_rows, dtype=np.int64)
    score = np.full(num_rows, -np.inf)
    # Spans of extra + 1 tokens, all rows at once.
    for extra in range(min(answer_length, width)):
        sums = starts[:, : width - extra] + ends[:, extra:]
        begin = sums.argmax(axis=1)
        is_better = sums[rows, begin] > score
        first[is_better] = begin[is_better]
        last[is_better] = begin[is_better] + extra
        score[is_better] = sums[rows, begin][is_better]
    return first, last, score


def _keep_best(scores: np.ndarray, count: int) -> np.ndarray:
    """Return `scores` (B, S) with all but the `count` best of each row at -inf."""
    count = min(count, scores.shape[1])
    threshold = np.partition(scores, -count, axis=1)[:, -count]
    return np.where(scores >= threshold[:, None], scores, -np.inf)


# --- Scores: official metrics, in percent ---


def score_qa(
    predictions: Mapping[str, str], questions: Sequence[Question], language: str | None = None
) -> Scores:
    """Return {"exact_match": percent, "f1": percent}.

    Args:
        predictions: {question id: answer}; an unanswered question scores 0.
        questions: With the answers that are accepted.
        language: None for SQuAD 1.1's official script (XQuAD uses it for all languages), else
            MLQA's rules for the language of the answers; languages that MLQA lacks are cut at
            spaces.
    """
    exact_match = 0.0
    f1 = 0.0
    for question in questions:
        if question.id not in predictions:
            continue
        predicted = answer_words(predictions[question.id], language)
        accepted = [answer_words(answer, language) for answer in question.answers]
        exact_match += predicted in accepted
        f1 += max(_f1(predicted, words) for words in accepted)
    return {"exact_match": 100.0 * exact_match / len(questions), "f1": 100.0 * f1 / len(questions)}


def answer_words(answer: str, language: str | None = None) -> list[str]:
    """Return the words of an answer that are compared.

    They are in lower case, without punctuation and articles; Chinese is compared by character. The
    official scripts join these by spaces and compare the strings, which is the same.
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
    precision = num_same / len(predicted)
    recall = num_same / len(accepted)
    return 2 * precision * recall / (precision + recall)
