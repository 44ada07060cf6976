"""Train a vocabulary for each language on its corpus, or take over that of a base."""

import contextlib
from dataclasses import replace
from typing import Any

from ds_minimodel.artifacts.base import check_base, identity_of_base, keep_vocabulary
from ds_minimodel.common.errors import UserError
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import words_of_pairs
from ds_minimodel.pipeline.records import Job, difference_of, read_record
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

    def extend() -> None:
        assert base is not None
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

    parents = [*corpora, *pairs, *filter(None, (base, *kept))]
    inputs: dict[str, Any] = {"tokenizer": section.recorded()}
    if not recipe.num_base:
        return Job(out, inputs, parents, train)
    return _guarded(Job(out, inputs, parents, extend), recipe.languages.source)


def _guarded(job: Job, source: str) -> Job:
    """Add to a job's inputs the list of words that guards its vocabulary.

    That is the one that is here; of a vocabulary that has nothing else to be made again for it is
    the one that did, so that it stays valid where there is another list or none.
    """

    def by(guard: str | None) -> Job:
        return replace(job, inputs={**job.inputs, "guard": guard}) if guard else job

    # A damaged record, or a parent that is not there, is told of where it is judged.
    with contextlib.suppress(UserError):
        record = read_record(job.folder)
        if record and record.complete and job.folder.is_dir():
            as_made = by(record.inputs.get("guard"))
            if not difference_of(as_made, record)[0]:
                return as_made
    return by(guard_of(source))
