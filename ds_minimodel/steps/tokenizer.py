"""A vocabulary for each language: raw text -> SentencePiece model; that of a base is taken over."""

import shutil
from pathlib import Path

from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.data.reader import find_files
from ds_minimodel.data.tokenizer import open_tokenizer, train_tokenizer
from ds_minimodel.jobs import Job, fingerprint_of_text
from ds_minimodel.model.artifacts import identity


def jobs(recipe, layout):
    if recipe.base is None:
        return [_training(recipe, layout, language) for language in recipe.languages.all]
    pack, source = Path(recipe.base) / "pack", layout.tokenizer(recipe.languages.source)
    return [
        Job(source, {"base": identity(pack)}, (), lambda _: _take_over(pack, source)),
        *(_training(recipe, layout, language) for language in recipe.languages.targets),
    ]


def _training(recipe, layout, language):
    section, text = recipe.tokenizer, recipe.data.text[language]
    return Job(
        layout.tokenizer(language),
        {"tokenizer": section.model_dump(), "text": fingerprint_of_text(find_files(text))},
        (),
        lambda _: train_tokenizer(
            text, layout.tokenizer(language), section.vocab_size, section.character_coverage, section.input_sentences
        ),
    )


def _take_over(pack, out):
    tokenizer = open_tokenizer(pack)
    with atomic_folder(out) as folder:
        shutil.copyfile(tokenizer.path, folder / tokenizer.file_name)
        write_manifest(folder, kind="tokenizer", vocab_size=tokenizer.vocab_size)
