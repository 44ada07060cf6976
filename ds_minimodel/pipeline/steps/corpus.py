"""Read the text of each language into a corpus, and its pairs.

Raw text is read here and nowhere else.
"""

import fnmatch
import glob
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.common.files import Content, as_json, atomic_write
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import write_pairs
from ds_minimodel.pipeline.records import Job, read_record
from ds_minimodel.text.corpus import MANY_PAGES, Corpus, CorpusOptions, draw_parts, make_corpus
from ds_minimodel.text.languages import other_language
from ds_minimodel.text.reader import find_text, identity_of_text, read_documents
from ds_minimodel.text.workers import MpiRanks

TEST_BYTES = 30_000  # of held-out text that is scored in a language


def check_text(recipe: Recipe) -> None:
    """Raise UserError where a file of text that is still to be read is missing or empty."""
    for language in recipe.languages_of_corpora:
        _identity(recipe, language)
    for pairs in (*recipe.data.pairs.values(), *recipe.data.test_pairs.values()):
        _contents(pairs)
    for files in recipe.data.chats.values():
        find_text(files)


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that read the text, or the pairs, of a language each."""
    texts = [_job(recipe, context, language) for language in recipe.languages_of_corpora]
    return texts + [_pairs(recipe, context.layout, language) for language in recipe.data.pairs]


def _pairs(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    data = recipe.data
    out = layout.pairs(language)
    languages = (recipe.languages.source, language)

    def make() -> None:
        write_pairs(data, languages, out, lambda line: print(printable(line), file=sys.stderr))

    inputs = {
        "pairs": _contents(data.pairs[language]),
        "test_pairs": _contents(data.test_pairs.get(language, ())),
        "columns": data.pair_columns,
    }
    return Job(out, inputs, (), make)


def _contents(paths: Sequence[str]) -> list[Content]:
    for path in paths:
        if not Path(path).is_file():
            raise UserError(f"{path}: no such file of pairs; check the path")
    return [Content.of(path) for path in paths]


def _job(recipe: Recipe, context: Context, language: str) -> Job:
    data = recipe.data
    out = context.layout.corpus(language)
    options = CorpusOptions(
        held_out=data.held_out,
        min_words=data.min_words.get(language, 0),
        column=data.column,
        whole_documents=recipe.trained_by.whole_documents,
        draw=data.draw,
    )
    workers = data.workers or os.cpu_count() or 1
    ranks = cast(MpiRanks | None, context.ranks)

    def make() -> None:
        make_corpus(data.text[language], out, options=options, workers=workers, ranks=ranks)
        if ranks is not None and not ranks.is_main:
            return
        warning = other_language(read_documents(Corpus(out).training), language)
        if warning is not None:
            print(printable(f"{language}: {warning}"), file=sys.stderr)

    return Job(out, {"text": _identity(recipe, language), **asdict(options)}, (), make)


def _identity(recipe: Recipe, language: str) -> list[dict[str, Any]]:
    """Return what tells a language's text from others.

    Where files of it are gone, that is what it was when the corpus was made, if the files that are
    there are as they were then (of a text of which parts are drawn: as large).

    Raises:
        UserError: A file is missing or empty, and there is no such corpus.
    """
    patterns = recipe.data.text[language]
    draw = recipe.data.draw
    try:
        text = find_text(patterns)
        return identity_of_text(text, draw_parts(text, draw))
    except UserError:
        record = read_record(WorkdirLayout(recipe.workdir).corpus(language))
        if record is None or not record.complete:
            raise
        taken = record.inputs["text"]
        if not _is_rest_of(patterns, taken, record.hashes, is_drawn=draw is not None):
            raise
        _say_gone(language, *map(str, patterns))
        return taken


def _is_rest_of(
    patterns: Sequence[str], taken: list[dict[str, Any]], hashes: dict[str, str], *, is_drawn: bool
) -> bool:
    """Return whether the files that are there are some of those that a corpus was made of.

    Each pattern must name a file of the corpus, and each file of it be named by a pattern.
    """
    names = [Path(pattern).name for pattern in patterns]
    # (files of the corpus, patterns)
    fits = [
        [file["name"] == name or fnmatch.fnmatch(file["name"], name) for name in names]
        for file in taken
    ]
    if not all(map(any, fits)) or not all(map(any, zip(*fits, strict=True))):
        return False
    left = [
        Path(path)
        for pattern in patterns
        for path in glob.glob(pattern, recursive=True)
        if os.path.isfile(path)
    ]
    # Which parts of a file are drawn, and so its hash, depends on all files.
    facts = itemgetter("name", "bytes", "bytes" if is_drawn else "sha256")
    there, _ = as_json([*map(facts, identity_of_text(left))], hashes)
    return {*map(tuple, there)} <= {*map(facts, taken)}


@cache
def _say_gone(language: str, *patterns: str) -> None:
    gone = printable(
        f"{language}: not all of {', '.join(patterns)} is there; the corpus made of it is used"
    )
    print(gone, file=sys.stderr)


def write_tests(
    recipe: Recipe, say: Callable[[str], None] = print, max_bytes: int = TEST_BYTES
) -> None:
    """Write the test files of a recipe's one task from documents that are held out.

    Lines that stand on many pages are left out.

    Args:
        recipe: Has one task.
        say: Called with what is to be said of the files.
        max_bytes: Of a test file, beyond which it gets no further document.

    Raises:
        UserError: No document of a language is held out.
    """
    (task,) = recipe.finetune.tasks.values()
    for language, path in task.test.items():
        corpus = Corpus(WorkdirLayout(recipe.workdir).corpus(language))
        if not corpus.held_out:
            raise UserError(
                f"{recipe.data.text[language][0]}: none of its documents is among the "
                f"{recipe.data.held_out:.0%} held out; give a longer text, with an empty line "
                "between documents"
            )
        documents: list[list[str]] = []
        size = 0
        # Documents are taken from all over the text, which may be of several files.
        every = max(1, corpus.facts.bytes[1] // max_bytes)
        for document in islice(read_documents(corpus.held_out), 0, None, every):
            if size >= max_bytes:
                break
            documents.append(document)
            size += sum(len(line.encode()) + 1 for line in document)
        # Some readers take only the first documents of a file.
        random.Random(0).shuffle(documents)
        pages = Counter(line for document in documents for line in {*document} if line.strip())
        frequent = {line for line, count in pages.items() if count >= MANY_PAGES}
        # A text in which all lines are frequent is scored as it is.
        if len(frequent) == len(pages):
            frequent = set()
        scored = [[line for line in document if line not in frequent] for document in documents]
        text = "".join("\n".join([*lines, "\n"]) for lines in scored if any(map(str.strip, lines)))
        # A call may have been killed while it wrote.
        for half_written in Path(path).parent.glob(f"{Path(path).name}.tmp*"):
            half_written.unlink()
        with atomic_write(path) as file:
            file.write(text.encode())
        if frequent:
            say(
                f"{language}: {len(frequent):,} lines that stand on {MANY_PAGES} or more held-out "
                "pages are not scored"
            )
        if len(text) < max_bytes / 3:
            say(
                f"{language}: only {len(text):,} characters are held out; scores of so little text "
                "say little"
            )
