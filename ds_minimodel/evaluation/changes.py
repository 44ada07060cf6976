"""What became of a finished encoder to which a language was added.

That are texts that find each other, new tokens with what they lie near, and what the source's texts
have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.files import Amount, Count, Stored
from ds_minimodel.common.memory import keeping_blocks
from ds_minimodel.evaluation.retrieval import Sought

if TYPE_CHECKING:
    from ds_minimodel.models.trainable import Model
    from ds_minimodel.tokenizers.tokenizer import Tokenizer

EXAMPLES = 5
PIECES = 10
MIN_LETTERS = 4  # of a token that is shown
NEIGHBOURS = 3
COUNTED_LINES = 2000  # of which tokens are counted
COMMONEST = 400  # new tokens that those which are shown are drawn from


class Finding(Stored):
    """A text, what belongs to it, and what is nearest to it before and after."""

    text: str
    right: str
    before: str
    after: str


class NewToken(Stored):
    """A new token, and the source's tokens whose embeddings are nearest to its own."""

    token: str
    nearest: list[str]


class Changes(Stored):
    """What became of a model.

    Attributes:
        pack: Identity of the adaptation.
        findings: Some texts with what they find.
        tokens: Some of the new tokens.
        source_lines: Count of the source's texts that were looked at.
        cut_otherwise: Count of those that are cut into other tokens than before.
        same_changed: Largest difference of a vector's number, of texts that are cut as before.
        others_changed: The same of the others.
        tokens_before: Tokens of a line of the language before.
        tokens_after: Tokens of a line after.
        old_share: Share of the latter that are the source's own tokens.
    """

    pack: str
    findings: list[Finding]
    tokens: list[NewToken]
    source_lines: Count
    cut_otherwise: Count
    same_changed: Amount
    others_changed: Amount
    tokens_before: Amount
    tokens_after: Amount
    old_share: Amount


class View(NamedTuple):
    """A model as it is looked at, in memory only meanwhile.

    load: makes a SentenceEncoder. tokenizer: of its language. prompts: what it reads before queries
    and before documents.
    """

    load: Callable[[], Model]
    tokenizer: Tokenizer
    prompts: tuple[str, str] = ("", "")


def changes_of(
    before: View,
    after: View,
    sought: Sought,
    lines: Sequence[str],
    old_rows: NDArray[np.float32],
    first_rows: NDArray[np.float32],
    pack: str,
) -> Changes:
    """Look at a model before and after a language was added.

    Args:
        before: the untouched model.
        after: the one with the language.
        sought: texts of the language as queries, and of the source as documents.
        lines: of the language, such as it was trained on.
        old_rows: embeddings of the source's tokens (old, H).
        first_rows: embeddings of the new tokens as they were aligned (new, H).
        pack: identity of the adaptation.
    """
    documents = sought.documents
    cuts = zip(before.tokenizer.encode(documents), after.tokenizer.encode(documents), strict=True)
    is_same = np.array([one == other for one, other in cuts], bool)
    # Texts that are cut as before are in equal batches, so that equal numbers are equal bits.
    same = np.flatnonzero(is_same).tolist()
    others = np.flatnonzero(~is_same).tolist()
    parts = [part for part in (same, others) if part]
    chosen = np.unique(np.linspace(0, len(sought.right) - 1, EXAMPLES).round().astype(int))
    examples = sought.right[chosen]
    texts = [sought.queries[query] for query, _ in examples]
    vectors_before, queries_before = _vectors(before, texts, documents, parts)
    vectors_after, queries_after = _vectors(after, texts, documents, parts)
    differences = np.abs(vectors_before - vectors_after)
    nearest_before = (queries_before @ vectors_before.T).argmax(1)
    nearest_after = (queries_after @ vectors_after.T).argmax(1)
    findings = [
        Finding(
            text=text,
            right=documents[right],
            before=documents[nearest_before[index]],
            after=documents[nearest_after[index]],
        )
        for index, (text, (_, right)) in enumerate(zip(texts, examples, strict=True))
    ]

    counted = lines[:COUNTED_LINES]
    ids_before = before.tokenizer.encode(counted)
    ids_after = after.tokenizer.encode(counted)
    used = np.concatenate([np.asarray(ids, np.int64) for ids in ids_after] or [np.zeros(0, int)])
    num_base = after.tokenizer.vocabulary.num_base
    return Changes(
        pack=pack,
        findings=findings,
        tokens=_new_tokens(after.tokenizer, used[used >= num_base], old_rows, first_rows),
        source_lines=len(documents),
        cut_otherwise=int((~is_same).sum()),
        same_changed=float(differences[same].max(initial=0)),
        others_changed=float(differences[others].max(initial=0)),
        tokens_before=sum(map(len, ids_before)) / max(1, len(counted)),
        tokens_after=len(used) / max(1, len(counted)),
        old_share=float((used < num_base).mean()) if len(used) else 0.0,
    )


def _vectors(
    view: View,
    queries: Sequence[str],
    documents: Sequence[str],
    parts: Sequence[Sequence[int]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the vectors of documents (N, D), and of queries.

    parts: indices of documents, which have batches of their own.
    """
    from ds_minimodel.evaluation.sentences import encode_texts

    with keeping_blocks():
        model = view.load()
        of_query, of_document = view.prompts
        of_parts = [
            encode_texts(model, view.tokenizer, [documents[index] for index in part], of_document)
            for part in parts
        ]
        of_queries = encode_texts(model, view.tokenizer, queries, of_query)
    order = np.argsort(np.concatenate(parts))
    return np.concatenate(of_parts)[order], of_queries


def _new_tokens(
    tokenizer: Tokenizer,
    used: NDArray[np.int64],
    old_rows: NDArray[np.float32],
    first_rows: NDArray[np.float32],
) -> list[NewToken]:
    """Return some of the commonest new tokens that are long enough to be read.

    With each are the source's tokens nearest to it. `used` are the ids of new tokens in a text.
    """
    strings = tokenizer.pieces()
    ids, counts = np.unique(used, return_counts=True)
    commonest = ids[np.lexsort((ids, -counts))][:COMMONEST]
    shown = [id for id in commonest.tolist() if _letters(strings[id]) >= MIN_LETTERS]
    shown = shown[:: max(1, len(shown) // PIECES)][:PIECES]
    num_base = tokenizer.vocabulary.num_base
    units = old_rows / np.maximum(np.linalg.norm(old_rows, axis=1, keepdims=True), 1e-12)
    tokens = []
    for id in shown:
        order = np.argsort(-(units @ first_rows[id - num_base]), kind="stable")
        readable = [strings[near] for near in order[: 4 * NEIGHBOURS] if _letters(strings[near])]
        tokens.append(NewToken(token=strings[id], nearest=readable[:NEIGHBOURS]))
    return tokens


def _letters(string: str) -> int:
    return sum(sign.isalpha() for sign in string)
