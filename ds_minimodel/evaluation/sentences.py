"""What finished models give for texts: vectors of sentences, or scores of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.evaluation.batches import Examples, join, outputs
from ds_minimodel.models.heads import FinishedHead

if TYPE_CHECKING:
    from ds_minimodel.models.trainable import Model
    from ds_minimodel.tokenizers.tokenizer import Tokenizer


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """Return the count of tokens that a text begins with that stands behind a prompt."""
    if not prompt:
        return 0
    before, _ = tokenizer.vocabulary.frame
    return len(before) + len(tokenizer.encode([prompt])[0])


def sentence_examples(
    tokenizer: Tokenizer, texts: Sequence[str], head: FinishedHead, prompt: str = ""
) -> Examples:
    """Encode texts as a finished model reads them, without targets.

    They come after a prompt, framed, and cut to its length.
    """
    bos, eos = tokenizer.vocabulary.bounds("a sentence's vector")
    room = head.max_length - 2
    encoded = tokenizer.encode([prompt + text for text in texts])
    sequences = [np.array([bos, *ids[:room], eos]) for ids in encoded]
    prompts = np.full(len(texts), prompt_tokens(tokenizer, prompt)) if prompt else None
    return join(sequences, np.zeros(len(texts)), reads_start=False, prompts=prompts)


def outputs_of_examples(model: Model, examples: Examples) -> NDArray[np.float32]:
    """Return what a finished model gives for each of the examples, (N, D).

    Batches hold examples of like length.
    """
    from ds_minimodel.models.sentence import SentenceEncoder

    assert isinstance(model, SentenceEncoder)
    config = model.body.config
    assert config.head is not None
    width = config.head.outputs(config.hidden_size)
    numbers = np.empty((len(examples), width), np.float32)
    for index, outputs_BD in outputs(model, examples):
        numbers[index] = outputs_BD
    return numbers


def encode_texts(
    model: Model, tokenizer: Tokenizer, texts: Sequence[str], prompt: str = ""
) -> NDArray[np.float32]:
    """Return what a finished model gives for each of the texts, (N, D), in their order.

    Args:
        model: in evaluation mode.
        tokenizer: of the model's language.
        texts: any number.
        prompt: text before each of them, such as `head.prompt("query")`.
    """
    head = model.body.config.head
    assert head is not None
    examples = sentence_examples(tokenizer, texts, head=head, prompt=prompt)
    return outputs_of_examples(model, examples)
