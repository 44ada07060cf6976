"""How many new tokens `extend` adds: as many as pay, or as the call says."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import MAX_UNKNOWN
from ds_minimodel.config.schema import Recipe
from ds_minimodel.evaluation.comparison import PAGE_BYTES
from ds_minimodel.extend.config import MIN_NEW_TOKENS
from ds_minimodel.extend.recipe import MIN_TEXT_TOKENS
from ds_minimodel.pipeline.fertility import fertility

# Tokens to train on up to which new ones beside a body that trains do not pay (fourth study).
FEW_TOKENS = 100_000


class VocabularySize(NamedTuple):
    """The number of new tokens of a recipe, and what follows from it.

    Attributes:
        new_tokens: How many are added.
        text_tokens: Of the text, with them.
        seq_length: Tokens of a sample, which has as many bytes whatever was chosen.
    """

    new_tokens: int
    text_tokens: int
    seq_length: int


def choose_vocabulary_size(
    recipe: Recipe,
    asked: int | None,
    tokens: int,
    passes: float,
    say: Callable[[str], None] = print,
) -> VocabularySize:
    """Choose the number of new tokens of a recipe whose text has been read.

    Where the body trains on too few tokens for new ones to pay, the fewest are the best.

    Args:
        recipe: of one language, with its corpus; its own number is one of those that are compared.
        asked: the number that the call asks for, if it does.
        tokens: to train on in all.
        passes: over the text, at most.
        say: gets a line on what was chosen.

    Raises:
        UserError: where there is too little text, or another number is to be asked for.
    """
    (language,) = recipe.languages.targets
    (system,) = recipe.chosen_systems
    rows = {row["new_pieces"]: row for row in fertility(recipe)}
    (cheapest,) = (row for row in rows.values() if row["best"])
    fewest = rows.get(MIN_NEW_TOKENS, rows[0])
    trained = min(tokens, passes * fewest["tokens"])
    is_short = trained <= FEW_TOKENS and fewest["unknown"] <= MAX_UNKNOWN
    best = cheapest
    if asked is None and system.trains and is_short:
        best = fewest
    if best["tokens"] < MIN_TEXT_TOKENS:
        raise UserError(
            f"{language}: {best['tokens']:,} tokens of text are less than a step of "
            f"{MIN_TEXT_TOKENS:,}; give more text"
        )
    if asked is None and best["new_pieces"] < MIN_NEW_TOKENS:
        raise UserError(
            f"{language}: no new tokens pay: they occur too seldom in this text, or the model's "
            f"own split it as well; give more text, or --vocab-size {MIN_NEW_TOKENS} where the "
            "body trains"
        )
    chosen = rows.get(asked or best["new_pieces"])
    if chosen is None:
        raise UserError(
            f"{language}: the text offers no {asked:,} new tokens; lower --vocab-size or give "
            "more text"
        )
    if chosen["unknown"] > MAX_UNKNOWN:
        raise UserError(
            f"{language}: {chosen['unknown']:.0%} of the text stays unknown with "
            f"{chosen['new_pieces']:,} new tokens; raise --vocab-size"
        )
    say(f"{language}: {_sentence(chosen, rows[0], cheapest, is_short=best is not cheapest)}")
    length = round(recipe.adapt.seq_length * best["bytes_per_token"] / chosen["bytes_per_token"])
    return VocabularySize(
        new_tokens=chosen["new_pieces"],
        text_tokens=chosen["tokens"],
        seq_length=min(recipe.model.max_positions, length),
    )


def _sentence(
    chosen: dict[str, Any], before: dict[str, Any], cheapest: dict[str, Any], *, is_short: bool
) -> str:
    """Say what the chosen number of tokens brings, and what the cheapest would.

    `is_short` says whether the training is too short for the cheapest to pay.
    """
    compared = f"before {before['bytes_per_token']:.2f}"
    pages = f"{_tokens_of_page(chosen)} tokens to read or write, {_tokens_of_page(before)} before"
    if chosen is not cheapest:
        compared += f", with {cheapest['new_pieces']:,} {cheapest['bytes_per_token']:.2f}"
        pages += f", {_tokens_of_page(cheapest)} with --vocab-size {cheapest['new_pieces']}"
    if is_short:
        compared += f", which pay in trainings of more than {FEW_TOKENS:,} tokens"
    return (
        f"{chosen['new_pieces']:,} new tokens, {chosen['bytes_per_token']:.2f} bytes per token "
        f"({compared}); {chosen['tokens']:,} tokens of text; a page of {PAGE_BYTES:,} bytes is "
        f"{pages}"
    )


def _tokens_of_page(row: dict[str, Any]) -> str:
    return f"{PAGE_BYTES / row['bytes_per_token']:,.0f}"
