"""A vocabulary for each language: raw text -> SentencePiece model."""

from ds_minimodel.data.reader import find_files
from ds_minimodel.data.unigram import train_tokenizer
from ds_minimodel.steps.jobs import Job, fingerprint_of_text


def jobs(recipe, layout):
    section = recipe.tokenizer
    return [Job(layout.tokenizer(language),
                {"tokenizer": section.model_dump(), "text": fingerprint_of_text(find_files(text))}, (),
                lambda _, language=language, text=text: train_tokenizer(
                    text, layout.tokenizer(language), section.vocab_size, section.character_coverage,
                    section.input_sentences))
            for language, text in ((language, recipe.data.text[language]) for language in recipe.languages.all)]
