"""What became of a finished encoder to which a language was added.

That are texts that find each other, new tokens with what they lie near, and what the source's texts
have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.files import Amount, Count, Stored
from ds_minimodel.evaluation.retrieval import Sought

if TYPE_CHECKING:
    from ds_minimodel.models.sentence import SentenceEncoder
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


class View:
    """A SentenceEncoder with its tokenizer, and what it reads before queries and documents."""

    def __init__(self, model: Model, tokenizer: Tokenizer, prompts: tuple[str, str] = ("", "")):
        self.model = cast("SentenceEncoder", model)
        self.tokenizer = tokenizer
        self.prompts = prompts

    def vectors(self, texts: Sequence[str], is_query: bool = False) -> NDArray[np.float32]:
        """Return the model's vectors of texts (N, D)."""
        from ds_minimodel.evaluation.sentences import encode_texts

        prompt = self.prompts[0] if is_query else self.prompts[1]
        return encode_texts(self.model, self.tokenizer, texts, prompt=prompt)


def changes_of(
    before: View,
    after: View,
    sought: Sought,
    lines: Sequence[str],
    first_rows: NDArray[np.float32],
    pack: str,
) -> Changes:
    """Look at a model before and after a language was added.

    Args:
        before: the untouched model.
        after: the one with the language.
        sought: texts of the language as queries, and of the source as documents.
        lines: of the language, such as it was trained on.
        first_rows: embeddings of the new tokens as they were aligned (new, H).
        pack: identity of the adaptation.
    """
    documents = sought.documents
    cuts = zip(before.tokenizer.encode(documents), after.tokenizer.encode(documents), strict=True)
    is_same = np.array([one == other for one, other in cuts], bool)
    # Texts that are cut as before are in equal batches, so that equal numbers are equal bits.
    same = np.flatnonzero(is_same).tolist()
    others = np.flatnonzero(~is_same).tolist()
    vectors_before = _vectors_by_parts(before, documents, [same, others])
    vectors_after = _vectors_by_parts(after, documents, [same, others])
    differences = np.abs(vectors_before - vectors_after)

    chosen = np.unique(np.linspace(0, len(sought.right) - 1, EXAMPLES).round().astype(int))
    examples = sought.right[chosen]
    texts = [sought.queries[query] for query, _ in examples]
    nearest_before = (before.vectors(texts, is_query=True) @ vectors_before.T).argmax(1)
    nearest_after = (after.vectors(texts, is_query=True) @ vectors_after.T).argmax(1)
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
        tokens=_new_tokens(after, used[used >= num_base], first_rows),
        source_lines=len(documents),
        cut_otherwise=int((~is_same).sum()),
        same_changed=float(differences[same].max(initial=0)),
        others_changed=float(differences[others].max(initial=0)),
        tokens_before=sum(map(len, ids_before)) / max(1, len(counted)),
        tokens_after=len(used) / max(1, len(counted)),
        old_share=float((used < num_base).mean()) if len(used) else 0.0,
    )


def _vectors_by_parts(
    view: View, texts: Sequence[str], parts: Sequence[Sequence[int]]
) -> NDArray[np.float32]:
    """Return the vectors of texts (N, D); each part, indices of texts, has its own batches."""
    vectors = [view.vectors([texts[index] for index in part]) for part in parts if part]
    order = np.argsort(np.concatenate(parts))
    return np.concatenate(vectors)[order]


def _new_tokens(
    view: View, used: NDArray[np.int64], first_rows: NDArray[np.float32]
) -> list[NewToken]:
    """Return some of the commonest new tokens that are long enough to be read.

    With each are the source's tokens nearest to it. `used` are the ids of new tokens in a text.
    """
    strings = view.tokenizer.pieces()
    ids, counts = np.unique(used, return_counts=True)
    commonest = ids[np.lexsort((ids, -counts))][:COMMONEST]
    shown = [id for id in commonest.tolist() if _letters(strings[id]) >= MIN_LETTERS]
    shown = shown[:: max(1, len(shown) // PIECES)][:PIECES]
    num_base = view.tokenizer.vocabulary.num_base
    old = view.model.pack.tokens[:num_base].detach().float().cpu().numpy()
    units = old / np.maximum(np.linalg.norm(old, axis=1, keepdims=True), 1e-12)
    tokens = []
    for id in shown:
        order = np.argsort(-(units @ first_rows[id - num_base]), kind="stable")
        readable = [strings[near] for near in order[: 4 * NEIGHBOURS] if _letters(strings[near])]
        tokens.append(NewToken(token=strings[id], nearest=readable[:NEIGHBOURS]))
    return tokens


def _letters(string: str) -> int:
    return sum(sign.isalpha() for sign in string)
