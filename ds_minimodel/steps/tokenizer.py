"""A vocabulary for each language, trained on raw text; that of a base is taken over."""

from ds_minimodel.artifacts.base import identity_of_base, keep_vocabulary
from ds_minimodel.data.extension import extend_tokenizer
from ds_minimodel.data.reader import find_text, identity_of_text
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.tokenizer_training import train_tokenizer
from ds_minimodel.jobs.layout import WorkdirLayout
from ds_minimodel.jobs.records import Job
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.context import Context


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    if recipe.base is None:
        return [_training(recipe, layout, language) for language in recipe.languages.all]
    base, source = recipe.base, layout.tokenizer(recipe.languages.source)
    return [
        Job(source, {"base": identity_of_base(base)}, (), lambda: keep_vocabulary(base, source)),
        *(_training(recipe, layout, language) for language in recipe.languages.targets),
    ]


def _training(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    section, text = recipe.tokenizer, find_text(recipe.data.text[language])
    inputs = {"tokenizer": section.recorded(), "text": identity_of_text(text), "column": recipe.data.column}
    base = None if recipe.base is None else layout.tokenizer(recipe.languages.source)
    out = layout.tokenizer(language)

    def extend() -> None:
        assert base is not None
        source = recipe.data.text.get(recipe.languages.source, [])
        number, label = section.vocab_size, f"tokenizer {language}"
        extend_tokenizer(
            base, recipe.kept_rows, recipe.data.text[language], source, out, number, label, recipe.data.column
        )

    def train() -> None:
        train_tokenizer(
            recipe.data.text[language],
            out,
            section.vocab_size,
            section.character_coverage,
            section.input_sentences,
            f"tokenizer {language}",
            recipe.data.column,
            section.kind,
            None if base is None else open_tokenizer(base),
        )
        if recipe.trained_by.needs_lossless:
            open_tokenizer(out).vocabulary.require_lossless(f"the objective {recipe.objective}")

    if recipe.kept_rows:
        source = find_text(recipe.data.text.get(recipe.languages.source, []))
        inputs["source"] = identity_of_text(source)
    return Job(out, inputs, () if base is None else (base,), extend if recipe.kept_rows else train)
