"""Train a vocabulary for each language on its corpus, or take over that of a base."""

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
    """Return jobs that make a vocabulary, one a language."""
    layout = context.layout
    if recipe.base is None:
        return [_training(recipe, layout, language) for language in recipe.languages.all]
    base = recipe.base
    source = layout.tokenizer(recipe.languages.source)

    def take_over() -> None:
        # The base is checked before anything is made by it.
        check_base(base, recipe.pooling)
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
            guard=guarded_words(recipe.languages.source, language, words),
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

    parents = [*corpora, *pairs]
    if base is not None:
        parents.append(base)
    parents += kept
    inputs: dict[str, Any] = {"tokenizer": made_by}
    if guard:
        inputs["guard"] = guard
    return Job(out, inputs, parents, extend if recipe.num_base else train)


def _guard_of(out: Path, made_by: dict[str, Any], source: str) -> str | None:
    """Return the name of the list of words that guards a vocabulary.

    A vocabulary that is complete has the list that it was made with, so that it stays valid where
    another list is installed, or none.
    """
    # A damaged record is reported where it is judged.
    with contextlib.suppress(UserError):
        record = read_record(out)
        if record and record.complete and out.is_dir() and record.inputs["tokenizer"] == made_by:
            return record.inputs.get("guard")
    return guard_of(source)


def _require_guard(out: Path, guard: str | None, source: str) -> None:
    """Raise UserError where other words guard here than those that `out` was made with."""
    here = guard_of(source)
    if here != guard:
        raise UserError(
            f"{out}: made with the words of {guard or 'no list'}, and here there are those of "
            f"{here or 'none'}, by which other tokens would be chosen; install what is missing "
            "(pip install 'ds_minimodel[pairs]'), or delete that folder and give --rebuild"
        )
