"""Retrieval: whether a text's vector finds those of the texts that belong to it in a file.

All documents are compared with all queries, without an index; nothing is finetuned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

import numpy as np

from ds_minimodel.common.config import EachOnce
from ds_minimodel.common.errors import UserError
from ds_minimodel.evaluation.batches import join
from ds_minimodel.evaluation.kind import Encoded, Labels, Logits, Scores, TaskConfig, TaskKind
from ds_minimodel.evaluation.sentences import prompt_tokens
from ds_minimodel.evaluation.tables import rows_of_file
from ds_minimodel.text.rows import text_field

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer

CANDIDATES = 1000  # by which recalls compare: it is harder to find one text among more
# Difference of two scores that another order of a sum may make, by the larger one's size.
TIE = 1e-6
CONFIDENCE = 1.96  # standard errors to each side of an interval, which then has 95 %
BLOCK = 1024  # queries that are compared at a time

Role = Literal["query", "document"]
_FORM = "a row has a query and a document that belongs to it; one of them may be empty"


class RetrievalConfig(TaskConfig):
    """What a recipe says of texts that find others."""

    kind: Literal["retrieval"]
    columns: Annotated[dict[Role, str], EachOnce] = {}
    """Role → column."""
    prompts: dict[Role, str] = {}
    """Texts put before a query and before a document."""


@dataclass(frozen=True)
class Sought:
    """Queries and documents, each text once.

    Attributes:
        queries: Texts that are asked for.
        documents: Texts that are found.
        right: (N, 2) int64, indices of a query and of a document that belong together.
    """

    queries: list[str]
    documents: list[str]
    right: np.ndarray


class Retrieval(TaskKind[Sought, Encoded, RetrievalConfig]):
    """Which document is nearest to a query, and the other way round, by the dot product."""

    name = "retrieval"
    config = RetrievalConfig
    objective = "sentence"
    has_labels = False
    reads_start = False

    def read(self, path: str, task: RetrievalConfig, language: str, labels: Labels) -> Sought:
        """Read queries and documents."""
        return read_sought(path, task.columns)

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Sought,
        task: RetrievalConfig,
        max_length: int,
        separators: int = 2,
    ) -> Encoded:
        """Encode the queries, then the documents, after their prompts."""
        return encode_sought(tokenizer, records, max_length, prompts=task.prompts)

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return the finished model itself."""
        from ds_minimodel.models.sentence import SentenceEncoder

        return SentenceEncoder(config, vocab_size)

    def score(
        self,
        task: RetrievalConfig,
        language: str,
        records: Sought,
        encoded: Encoded,
        logits: Logits,
    ) -> Scores:
        """Return scores_both_ways; `logits` are vectors (B, H)."""
        vectors = vectors_of(logits, len(encoded.examples))
        queries, documents = np.split(vectors, [len(records.queries)])
        return scores_both_ways(queries, documents, records.right)

    def metric(self, task: RetrievalConfig) -> str:
        """Return "recall@1"."""
        return "recall@1"


def read_sought(path: str, columns: Mapping[Role, str]) -> Sought:
    """Read a file's rows.

    A text that stands in several rows is one query or document with all that belongs to it. One
    whose row has no other side is only a wrong candidate.

    Args:
        path: Of the file.
        columns: Role → column, where it has another name.

    Raises:
        UserError: As of tasks' files.
    """
    names = {role: columns.get(role, role) for role in get_args(Role)}
    queries: dict[str, int] = {}
    documents: dict[str, int] = {}
    right: dict[tuple[int, int], None] = {}
    for where, row in rows_of_file(path, names.values()):
        query = text_field(row, names["query"], where).strip()
        document = text_field(row, names["document"], where).strip()
        if not query and not document:
            raise UserError(f"{where}: {_FORM}")
        if query:
            query_id = queries.setdefault(query, len(queries))
        if document:
            document_id = documents.setdefault(document, len(documents))
        if query and document:
            right[query_id, document_id] = None
    if not right:
        raise UserError(f"{path}: no query with a document; {_FORM}")
    return Sought([*queries], [*documents], np.array([*right], np.int64))


def encode_sought(
    tokenizer: Tokenizer,
    sought: Sought,
    max_length: int,
    prompts: Mapping[Role, str] | None = None,
) -> Encoded:
    """Encode the queries, and then the documents, each after its prompt.

    The tokens that begin and end a text stand around it. It is cut to fit `max_length`.
    """
    before_text = prompts or {}
    of_query = before_text.get("query", "")
    of_document = before_text.get("document", "")
    texts = [of_query + text for text in sought.queries]
    texts += [of_document + text for text in sought.documents]
    before, after = tokenizer.vocabulary.frame
    room = max_length - len(before) - len(after)
    sequences = [np.array([*before, *ids[:room], *after]) for ids in tokenizer.encode(texts)]
    counts = np.repeat(
        [prompt_tokens(tokenizer, of_query), prompt_tokens(tokenizer, of_document)],
        [len(sought.queries), len(sought.documents)],
    )
    examples = join(
        sequences,
        np.zeros(len(sequences)),
        reads_start=False,
        prompts=counts if counts.any() else None,
    )
    return Encoded(examples)


def vectors_of(logits: Logits, count: int) -> np.ndarray:
    """Return vectors (count, H) in their order, from (index (B,), vectors (B, H)) of batches."""
    vectors: np.ndarray | None = None
    for index, vectors_BH in logits:
        if vectors is None:
            vectors = np.empty((count, vectors_BH.shape[1]), np.float32)
        vectors[index] = vectors_BH
    assert vectors is not None
    return vectors


class Found(NamedTuple):
    """How well queries find documents, in percent.

    Attributes:
        recall_at_1: Queries whose nearest document is a right one.
        recall_at_10: Queries with a right one among the ten nearest.
        mrr: Mean reciprocal rank of the nearest right one.
        low: Lower end of the interval of 95 % of recall_at_1, Wilson's.
        high: Its upper end.
        queries: Count of queries that are asked.
        candidates: Count of documents.
    """

    recall_at_1: float
    recall_at_10: float
    mrr: float
    low: float
    high: float
    queries: int
    candidates: int


def found(queries: np.ndarray, documents: np.ndarray, right: np.ndarray) -> Found:
    """Measure how well queries find the documents that belong to them.

    Args:
        queries: (Q, H). Those without a right document are not asked.
        documents: (D, H).
        right: (N, 2), as of Sought.
    """
    ranks = ranks_of_right(queries, documents, right)
    first = float((ranks == 1).mean())
    low, high = wilson(first, len(ranks))
    return Found(
        recall_at_1=100 * first,
        recall_at_10=100 * float((ranks <= 10).mean()),
        mrr=100 * float((1 / ranks).mean()),
        low=100 * low,
        high=100 * high,
        queries=len(ranks),
        candidates=len(documents),
    )


def scores_both_ways(queries: np.ndarray, documents: np.ndarray, right: np.ndarray) -> Scores:
    """Return the scores of queries that find documents, and of documents that find queries.

    "score" is the recall@1 of queries. The names of a Found are those of the first, and with
    "back_" before them of the second. Arguments are those of `found`.
    """
    there = found(queries, documents, right)
    back = found(documents, queries, right[:, ::-1])
    scores = {"score": there.recall_at_1, **there._asdict()}
    return scores | {f"back_{name}": value for name, value in back._asdict().items()}


def ranks_of_right(queries: np.ndarray, documents: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the rank, from 1, of the best right document of each query that has one, (queries,).

    A wrong document that is as near stands before it, and so does whatever is not comparable.
    """
    # `asked` are the queries in `right`; `place` is where that of each row stands among them.
    asked, place = np.unique(right[:, 0], return_inverse=True)
    of_documents = documents.astype(np.float64).T
    ranks = np.empty(len(asked), np.int64)
    for start in range(0, len(asked), BLOCK):
        stop = min(start + BLOCK, len(asked))
        scores = queries[asked[start:stop]].astype(np.float64) @ of_documents
        in_block = (place >= start) & (place < stop)
        is_right = np.zeros(scores.shape, bool)
        is_right[place[in_block] - start, right[in_block, 1]] = True
        best = np.where(is_right, scores, -np.inf).max(1, keepdims=True)
        is_behind = scores < best - TIE * np.abs(best)
        ranks[start:stop] = 1 + (~is_behind & ~is_right).sum(1)
    return ranks


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` (Wilson 1927)."""
    z = CONFIDENCE
    shrunk = 1 + z**2 / count
    middle = (share + z**2 / (2 * count)) / shrunk
    reach = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / shrunk
    return max(0.0, middle - reach), min(1.0, middle + reach)


def filled(
    pairs: Sequence[tuple[str, str]],
    others: Sequence[tuple[str, str]],
    count: int = CANDIDATES,
) -> list[dict[str, str]]:
    """Return rows of a file in which queries and their documents stand among wrong candidates.

    Args:
        pairs: Queries and their documents.
        others: Pairs whose sides are wrong candidates: as many of the first as are needed, and none
            that stands in `pairs`.
        count: Texts on either side.
    """
    rows = [{"query": query, "document": document} for query, document in pairs]
    for role, side in (("query", 0), ("document", 1)):
        there = {pair[side] for pair in pairs}
        for pair in others:
            if len(there) >= count:
                break
            if pair[side] not in there:
                there.add(pair[side])
                rows.append({"query": "", "document": ""} | {role: pair[side]})
    return rows
