"""A token store for each language: raw text + tokenizer -> memory-mapped tokens."""

import os

from ds_minimodel.common.progress import Progress
from ds_minimodel.data.prepare import prepare
from ds_minimodel.data.reader import find_files
from ds_minimodel.jobs import Job, fingerprint_of_text


def jobs(recipe, layout):
    found = []
    for language in recipe.languages_of_text:
        text, min_words = recipe.data.text[language], recipe.data.min_words.get(language, 0)
        found.append(
            Job(
                layout.tokens(language),
                {"text": fingerprint_of_text(find_files(text)), "min_words": min_words},
                (layout.tokenizer(language),),
                lambda ranks, language=language, text=text, min_words=min_words: _prepare(
                    recipe, layout, language, text, min_words, ranks
                ),
            )
        )
    return found


def _prepare(recipe, layout, language, text, min_words, ranks):
    progress = Progress(f"prepare {language}", None, "tokens")
    prepare(
        text,
        layout.tokenizer(language),
        layout.tokens(language),
        min_words,
        recipe.data.workers or os.cpu_count(),
        ranks,
        progress=lambda documents, tokens, _: progress.update(tokens, f"{documents:,} documents"),
    )
    progress.close()
