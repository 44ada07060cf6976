"""A vocabulary for each language, trained on its corpus; that of a base is taken over."""

from ds_minimodel.artifacts.base import check_base, identity_of_base, keep_vocabulary
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import words_of_pairs
from ds_minimodel.pipeline.records import Job
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.tokenizers.extension import extend_tokenizer
from ds_minimodel.tokenizers.guard import guarded_words
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    if recipe.base is None:
        return [_training(recipe, layout, language) for language in recipe.languages.all]
    base, source = recipe.base, layout.tokenizer(recipe.languages.source)

    def take_over() -> None:
        check_base(base, recipe.pooling)  # before anything is made by it
        keep_vocabulary(base, source)

    return [
        Job(source, {"base": identity_of_base(base)}, (), take_over),
        *(_training(recipe, layout, language) for language in recipe.languages.targets),
    ]


def _training(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    section, out, corpus = recipe.tokenizer, layout.tokenizer(language), layout.corpus(language)
    base = None if recipe.base is None else layout.tokenizer(recipe.languages.source)
    kept = [layout.corpus(own) for own in recipe.languages_kept]
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
            guard=guarded_words(recipe.languages.source, words),
        )

    def train() -> None:
        train_tokenizer(
            Corpus(corpus).training,
            out,
            section.vocab_size,
            section.character_coverage,
            section.input_sentences,
            f"tokenizer {language}",
            section.kind,
            None if base is None else open_tokenizer(base),
        )
        if recipe.trained_by.needs_lossless:
            open_tokenizer(out).vocabulary.require_lossless(
                f"the objective {recipe.trained_by.name}"
            )

    parents = [*corpora, *pairs, *filter(None, (base, *kept))]
    return Job(
        out, {"tokenizer": section.recorded()}, parents, extend if recipe.num_base else train
    )
