"""What new tokens bring to a language that is added to a base's vocabulary, and what they cost."""

import tempfile
from pathlib import Path
from typing import Any

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import MAX_UNKNOWN, MIN_OCCURRENCES
from ds_minimodel.config.flops import step_work
from ds_minimodel.config.schema import Recipe
from ds_minimodel.models.flops import step_flops
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import read_record
from ds_minimodel.text.corpus import Corpus, words_of
from ds_minimodel.tokenizers.extension import Extension, read_extension
from ds_minimodel.tokenizers.guard import guarded_words

# Counts of new pieces that are compared.
SIZES = 0, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000


def fertility(recipe: Recipe) -> list[dict[str, Any]]:
    """Return what each count of new pieces does to each target language, as rows of JSON.

    A row has these values:
    tokens, tokens_per_word, bytes_per_token: Of the text to train on, extrapolated from the part
        that is counted. An unknown byte counts as a token in the last.
    unknown: Share of the text's bytes that have no token.
    rarest: Occurrences of the rarest new piece.
    output_megabytes: Size of the new rows in fp32.
    flops_per_byte: Cost of step 2 over the whole body, by which vocabularies compare.
    best: Whether it is the cheapest of those that know the text and whose pieces occur
        MIN_OCCURRENCES times.

    Args:
        recipe: Has a base, and corpora that are complete. Its own count of new pieces is among the
            rows; none has more than the text supports.

    Raises:
        UserError: The recipe has no base, or the base's vocabulary cannot be extended.
    """
    if recipe.base is None:
        raise UserError(
            "fertility: the recipe has no base whose vocabulary new tokens would extend"
        )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = WorkdirLayout(recipe.workdir).tokenizer(recipe.languages.source)
        record = read_record(tokenizer)
        if record is None or not record.complete:
            tokenizer = Path(folder) / "tokenizer"
            keep_vocabulary(recipe.base, tokenizer)
        return _rows(recipe, tokenizer)


def _rows(recipe: Recipe, base_tokenizer: Path) -> list[dict[str, Any]]:
    rows = []
    layout = WorkdirLayout(recipe.workdir)
    kept = words_of(layout.corpus(language) for language in recipe.languages_kept)
    for language in recipe.languages.targets:
        corpus = Corpus(layout.corpus(language))
        recipe_size = recipe.tokenizer.vocab_size if recipe.num_base else 0
        words = corpus.words()
        guard = guarded_words(recipe.languages.source, language, words)
        extension = read_extension(base_tokenizer, words, kept, max(SIZES[-1], recipe_size), guard)
        sizes = {*SIZES, recipe_size}
        # A short text has few pieces that occur often: their count gets a row, too.
        if extension.often < SIZES[1]:
            sizes.add(extension.often)
        sizes = {size for size in sizes if size <= len(extension.pieces)}
        of_language = [
            _row(recipe, language, extension, corpus.share_counted, size) for size in sorted(sizes)
        ]
        # Where no vocabulary knows the text, the largest serves; where none has frequent pieces
        # alone, the smallest.
        known = [row for row in of_language if row["unknown"] <= MAX_UNKNOWN] or of_language[-1:]
        frequent = [
            row for row in known if row["rarest"] is None or row["rarest"] >= MIN_OCCURRENCES
        ] or known[:1]
        best = min(frequent, key=lambda row: row["flops_per_byte"])
        rows += [{**row, "best": row is best} for row in of_language]
    return rows


def _row(
    recipe: Recipe, language: str, extension: Extension, share: float, size: int
) -> dict[str, Any]:
    tokens, unknown = extension.tokens_with(size)
    config = recipe.body_config
    num_base = recipe.source_vocab_size
    bytes_per_token = extension.num_bytes / max(1, tokens + unknown * extension.num_bytes)
    section = recipe.adapt
    work = step_work(recipe.trained_by, config, section, num_base + size, num_base=num_base)
    cost = step_flops("adapt", work, [config.num_layers]).executed / work.num_sequences
    num_matrices = sum(name != "bias" for name in config.language_tensors)
    return {
        "language": language,
        "new_pieces": size,
        "tokens": round(tokens / share),
        "tokens_per_word": tokens / max(1, extension.words),
        "bytes_per_token": bytes_per_token,
        "unknown": unknown,
        "rarest": extension.counts[size - 1] if size else None,
        "output_megabytes": 4e-6 * size * config.hidden_size * num_matrices,
        "flops_per_byte": cost / (section.seq_length * bytes_per_token),
    }
