"""Write token stores of text, of the lines of pairs, of dialogues, and of self-generated replay."""

import os
import sys
from functools import partial
from typing import cast

from ds_minimodel.artifacts.base import identity_of_base
from ds_minimodel.common.progress import Progress
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.prepare import StoreText, prepare
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.lines import write_sides
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.records import Job
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.text.reader import find_text, identity_of_text
from ds_minimodel.text.workers import MpiRanks
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

# A base writes so many tokens by itself at most, even where it is trained on more.
MAX_GENERATED_TOKENS = 200_000


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that write a token store each."""
    layout = context.layout
    if recipe.learns_from_pairs:
        return [_lines(recipe, layout, language) for language in recipe.languages.targets]
    listed = [_text(recipe, context, language) for language in recipe.languages_of_text]
    listed += [_chats(recipe, layout, language) for language in recipe.data.chats]
    if recipe.adapt.replays_own:
        listed.append(_generated_replay(recipe, layout))
    return listed


def _lines(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    """Return the job of both sides of the lines of pairs.

    Lines that the base does not read whole are left out.
    """
    pairs = layout.pairs(language)
    out = layout.tokens(language)
    source = layout.tokenizer(recipe.languages.source)
    target = layout.tokenizer(language)
    head = recipe.body_config.head
    assert head is not None
    prompt = head.prompt("passage", "document")

    def make() -> None:
        corpus = PairCorpus(pairs)
        lines = corpus.lines
        kept = write_sides(
            out,
            lines,
            open_tokenizer(source),
            open_tokenizer(target),
            max_length=head.max_length,
            names=[text.name for text in corpus.training],
            prompt=prompt,
        )
        print(
            f"{language}: {kept:,} lines to train on; {len(lines) - kept:,} are longer than the "
            f"{head.max_length} tokens that the model reads",
            file=sys.stderr,
        )

    inputs = {"lines": {"max_length": head.max_length, "prompt": prompt}}
    return Job(out, inputs, (pairs, source, target), make)


def _chats(recipe: Recipe, layout: WorkdirLayout, language: str) -> Job:
    """Return the job of a target's dialogues."""
    files = recipe.data.chats[language]
    out = layout.chats(language)
    tokenizer = layout.tokenizer(language)
    corpus = layout.corpus(language)

    def make() -> None:
        # It brings transformers, which takes seconds to import.
        from ds_minimodel.pipeline.dialogues import prepare_chats

        held_text = Corpus(corpus).held_out if recipe.data.held_out else []
        prepare_chats(
            files,
            tokenizer,
            out,
            length=recipe.adapt.seq_length,
            held_out=recipe.data.held_out,
            held_text=held_text,
        )

    inputs = {
        "chats": identity_of_text(find_text(files)),
        "held_out_questions": recipe.data.held_out,
        "seq_length": recipe.adapt.seq_length,
    }
    return Job(out, inputs, (tokenizer, corpus), make)


def _generated_replay(recipe: Recipe, layout: WorkdirLayout) -> Job:
    """Return the job of the text that the base generates for replay.

    It is as much as step 2 trains on, up to MAX_GENERATED_TOKENS tokens.
    """
    base = recipe.base
    assert base is not None
    section = recipe.adapt
    tokenizer = layout.tokenizer(recipe.languages.source)
    out = layout.own_replay()
    trained = section.steps * section.batch_size * section.seq_length
    tokens = max(1, min(round(section.replay * trained), MAX_GENERATED_TOKENS))

    known = [
        layout.corpus(language)
        for language in recipe.languages_kept
        if language != recipe.languages.source
    ]

    def make() -> None:
        # It brings transformers, which takes seconds to import.
        from ds_minimodel.pipeline.own_replay import write_replay

        write_replay(
            base,
            tokenizer,
            out,
            tokens=tokens,
            seed=recipe.seed,
            known=[Corpus(path).training for path in known],
            sample_length=section.seq_length,
        )

    inputs = {
        "base": identity_of_base(base),
        "seed": recipe.seed,
        "sample_length": section.seq_length,
        "rehearsal": {"steps": tokens},
    }
    return Job(out, inputs, (tokenizer, *known), make, grows="rehearsal")


def _text(recipe: Recipe, context: Context, language: str) -> Job:
    """Return the job of a language's text."""
    layout = context.layout
    inputs = {"whole_documents": recipe.trained_by.whole_documents}
    make = partial(_prepare, recipe, context, language)
    parents = (layout.corpus(language), layout.tokenizer(language))
    return Job(layout.tokens(language), inputs, parents, make)


def _prepare(recipe: Recipe, context: Context, language: str) -> None:
    layout = context.layout
    progress = Progress(f"prepare {language}", None, "tokens")
    corpus = Corpus(layout.corpus(language))
    unknown = prepare(
        StoreText(
            corpus.training,
            held_out=corpus.held_out if recipe.data.held_out else None,
            names=corpus.facts.text,
            whole_documents=recipe.trained_by.whole_documents,
        ),
        layout.tokenizer(language),
        layout.tokens(language),
        workers=recipe.data.workers or os.cpu_count() or 1,
        ranks=cast(MpiRanks | None, context.ranks),
        progress=lambda documents, tokens: progress.update(tokens, f"{documents:,} documents"),
    )
    progress.close(f"{unknown:.2%} of the text's bytes have no token" if unknown else None)
