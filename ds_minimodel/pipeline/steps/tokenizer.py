"""A vocabulary for each language, trained on its corpus; that of a base is taken over."""

import contextlib
from pathlib import Path
from typing import Any

from ds_minimodel.artifacts.base import check_base, identity_of_base, keep_vocabulary
from ds_minimodel.common.errors import UserError
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import words_of_pairs
from ds_minimodel.pipeline.records import Job, read_record
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.tokenizers.extension import extend_tokenizer
from ds_minimodel.tokenizers.guard import guard_of, guarded_words
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    if recipe.base is None:
        return [_training(recipe, layout, language) for language in recipe.languages.all]
    base = recipe.base
    source = layout.tokenizer(recipe.languages.source)

    def take_over() -> None:
        check_base(base, recipe.pooling)  # before anything is made by it
        keep_vocabulary(base, source)

    return [
        Job(source, {"base": identity_of_base(base)}, (), take_over),
        *(_training(recipe, layout, language) for language in recipe.languages.targets),
    ]


def _training(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    section = recipe.tokenizer
    out = layout.tokenizer(language)
    corpus = layout.corpus(language)
    base = None if recipe.base is None else layout.tokenizer(recipe.languages.source)
    kept = [layout.corpus(language) for language in recipe.languages_kept]
    corpora = [corpus] if language in recipe.languages_of_corpora else []
    pairs = [layout.pairs(language)] if language in recipe.data.pairs and base else []
    made_by = section.recorded()
    guard = _guard_of(out, made_by, recipe.languages.source) if recipe.num_base else None

    def extend() -> None:
        assert base is not None
        _require_guard(out, guard, recipe.languages.source)
        words, kept_words = words_of_pairs(recipe, layout, language)
        extend_tokenizer(
            base,
            rows=recipe.num_base,
            text=words,
            kept_text=kept_words,
            out=out,
            new_pieces=section.vocab_size,
            guard=guarded_words(recipe.languages.source, words),
        )

    def train() -> None:
        train_tokenizer(
            Corpus(corpus).training,
            out,
            vocab_size=section.vocab_size,
            character_coverage=section.character_coverage,
            input_sentences=section.input_sentences,
            kind=section.kind,
            base=None if base is None else open_tokenizer(base),
        )
        if recipe.trained_by.needs_lossless:
            open_tokenizer(out).vocabulary.require_lossless(
                f"the objective {recipe.trained_by.name}"
            )

    parents = [*corpora, *pairs, *filter(None, (base, *kept))]
    inputs = {"tokenizer": made_by, **({"guard": guard} if guard else {})}
    return Job(out, inputs, parents, extend if recipe.num_base else train)


def _guard_of(out: Path, made_by: dict[str, Any], source: str) -> str | None:
    """Return the list of words that guards a vocabulary: of one that is made the list that did, so
    that it stays valid where there is another or none.
    """
    with contextlib.suppress(UserError):  # a damaged record is told of where it is judged
        record = read_record(out)
        if record and record.complete and out.is_dir() and record.inputs["tokenizer"] == made_by:
            return record.inputs.get("guard")
    return guard_of(source)


def _require_guard(out: Path, guard: str | None, source: str) -> None:
    """UserError where other words guard here than those that `out` was made with."""
    here = guard_of(source)
    if here != guard:
        raise UserError(
            f"{out}: made with the words of {guard or 'no list'}, and here there are those of "
            f"{here or 'none'}, by which other tokens would be chosen; install what is missing "
            "(pip install 'ds_minimodel[pairs]'), or delete that folder and give --rebuild"
        )
