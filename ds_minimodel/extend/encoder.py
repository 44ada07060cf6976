"""`extend` for a finished encoder, from the call to the folder.

A model that gives vectors or labels learns a language from pairs of texts and translations.
New pieces start as mixtures of the pieces that pairs align them to, which takes seconds. That model
stands in OUT/model first and can be used; training then improves it in place.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ds_minimodel.artifacts.adaptation import load_adaptation, whole
from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.artifacts.models import identity, load_model
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    atomic_write,
    read_json,
    read_model,
    write_json,
)
from ds_minimodel.config.base import read_base
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.changes import Changes, View, changes_of
from ds_minimodel.evaluation.packs import plugged_module
from ds_minimodel.evaluation.retrieval import CANDIDATES, Retrieval, RetrievalConfig, filled
from ds_minimodel.extend.call import Call, adaptation_of
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.length import measured_rate
from ds_minimodel.extend.recipe import (
    MAX_PASSES,
    RECIPE_NAME,
    SPARE_STEPS,
    TIMED_STEPS,
    WARM_STEPS,
    batch_of,
    count_ranks,
    values_of,
)
from ds_minimodel.extend.written import write_models
from ds_minimodel.models.heads import FinishedHead, LabelHead, SentenceHead
from ds_minimodel.models.kind import BodyConfig
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import PairCorpus, words_of_pairs
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from ds_minimodel.pipeline.training import snapshot_folder
from ds_minimodel.report.curves import OF_SOURCE, SCORES_FILE
from ds_minimodel.report.render import duration
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.text.pairs import Pair
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.extension import count_new_pieces
from ds_minimodel.tokenizers.guard import guarded_words
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

NEW_TOKENS = 8000  # at most, where nothing is said
BATCH = 48  # lines of a step
EPOCHS = 2  # where nothing is said
WARM_UP_STEPS = 50
HEADING_WORDS = 12  # at most
PAGE_LETTERS = 1500  # of a page that its heading is to find
MIN_PAGES = 20
FEW_PAIRS = 5000  # below which more of them bring much
# Of the rows that start aligned; of all weights a rate at which English stays near.
RATES = {"bl_base": 1e-3, "minipost": 1e-3, "lora": 5e-4, "full": 2e-5}
SYSTEMS = {None: "bl_base", "embeddings": "bl_base", "lora": "lora", "all": "full"}
REPLAY = 0.5  # of the samples are in the source, where the body trains
ALIGNED_BY = "bl_base"  # The first model needs no mini-model, which is built only to train.
MINI_STEPS = 600  # at most, that train new layers of a mini-model
MINI_SHARE = 0.5  # of the steps of a training, at most; more would cost what the mini-model saves
ACTIVATION_BYTES = 34 * 4  # of a token, for each layer and number of its width
MICRO_BATCH_BYTES = 6e8
TRAINING_COST = 2.0  # of a line, where reading it costs 1


def extend_encoder(call: Call) -> None:
    """Add a language to a finished encoder: align, write, train, and write again.

    Raises:
        UserError: as of the steps that it takes.
    """
    if call.path.exists():
        call.check_same_files(load_recipe(call.path).data)
    else:
        _write_recipe(call)
    if not call.state.steps:
        # The recipe has no steps yet, so this makes the new rows as they are aligned.
        call.run(until="adapt")
        write_models(call, None)
        _score(call)
        call.say(_alignment_message(call))
    if _set_length(call):
        call.run(until="adapt")
        write_models(call, None)
    call.run(until="evaluate")
    _look(call)
    call.run()


# The recipe.


def _write_recipe(call: Call) -> None:
    """Read the pairs, choose what they and the model decide, and write the recipe."""
    config = call.config
    base = read_base(config.model, config.pooling)
    head = base.config.head
    assert head is not None
    values = _first_values(config, base.config, head)
    recipe = recipe_of_values(values, RECIPE_NAME)
    call.record(recipe.data)
    run_step_here(STEPS["corpus"], recipe, rebuild=True)
    layout = WorkdirLayout(recipe.workdir)
    corpus = PairCorpus(layout.pairs(config.language))
    if not corpus.pairs:
        raise UserError(f"--pairs: nothing is left of {', '.join(config.pairs)} to learn from")
    values["finetune"] = {"tasks": _write_tests(call, corpus, head)}
    values["tokenizer"]["vocab_size"] = _count_new_tokens(recipe, config, layout)
    lengths = np.array([len(pair.target.split()) for pair in corpus.lines] or [1])
    values["engine"] = {"micro_batch_size": _micro_batch(values, base.config, lengths, config)}
    steps = EPOCHS * -(-len(corpus.lines) // values["adapt"]["batch_size"])
    values["adapt"]["warmup_steps"] = max(1, min(WARM_UP_STEPS, steps // 10))
    if config.mini:
        values["build_mini"]["steps"] = _mini_steps(steps)
    if len(corpus.pairs) < FEW_PAIRS:
        call.say(
            f"{len(corpus.pairs):,} pairs are few: after alignment by 1,000 German pairs 60 % of "
            "lines were found, by 25,000 71 %; a dictionary adds words that they lack"
        )
    if not corpus.tests:
        call.say(
            "other kinds of text are not scored without --test-pairs; expect less there (in German "
            "68 % of another program's help were found, 71 % of the pairs' own)"
        )
    call.write(values)


def _first_values(config: ExtendConfig, body: BodyConfig, head: FinishedHead) -> dict[str, Any]:
    """Return all of the recipe but what the pairs decide."""
    system = "minipost" if config.mini else SYSTEMS[config.train]
    batch = batch_of(BATCH, count_ranks(config))
    adapt: dict[str, Any] = {
        "steps": 0,
        "batch_size": batch,
        "seq_length": head.max_length,
        "lr": RATES[system],
        "schedule": "wsd",
        "warmup_steps": 1,
        "initialisation": "aligned",
    }
    if system in ("lora", "full"):
        adapt["replay"] = REPLAY
    data: dict[str, Any] = {"pairs": {config.language: config.pairs}, "column": config.column}
    if config.given_texts:
        data["text"] = config.given_texts
    if config.test_pairs:
        data["test_pairs"] = {config.language: config.test_pairs}
    if config.pair_columns:
        data["pair_columns"] = config.pair_columns
    values = values_of(
        config,
        system=ALIGNED_BY if config.mini else system,
        new_tokens=config.vocab_size or NEW_TOKENS,
        data=data,
        adapt=adapt,
    )
    if config.pooling:
        values["pooling"] = config.pooling
    if config.mini:
        depth, new_layers = _layers_of(config.mini, body.num_layers)
        values["mini"] = {"depth": depth, "new_layers": new_layers}
        values["build_mini"] = {
            "steps": MINI_STEPS,
            "batch_size": batch,
            "seq_length": head.max_length,
            "lr": RATES[system],
            "initialisation": "last",
        }
    return values


def _mini_steps(steps: int) -> int:
    """Return how many steps train a mini-model over which so many train a language."""
    return max(1, min(MINI_STEPS, int(MINI_SHARE * steps)))


def _layers_of(mini: str, num_layers: int) -> tuple[int, int]:
    """Return (layers of the body, new ones) of "3+1"; UserError where the body has not so many."""
    depth, new_layers = map(int, mini.split("+"))
    if depth + new_layers > num_layers:
        raise UserError(
            f"--mini {mini}: {depth} layers and {new_layers} are more than the model's "
            f"{num_layers}; give fewer"
        )
    return depth, new_layers


def _write_tests(call: Call, corpus: PairCorpus, head: FinishedHead) -> dict[str, Any]:
    """Write what is asked for of each kind of text; return the tasks by their names."""
    config = call.config
    tasks: dict[str, Any] = {}
    lines = corpus.lines
    kind = _kind_of(head)
    names = {text.name for text in corpus.held_out}
    # el.tsv and el.test.tsv are both called el.
    tests = [
        replace(text, name=f"{text.name}-test") if text.name in names else text
        for text in corpus.tests
    ]
    for text in (*tests, *corpus.held_out):
        if not text.pairs or kind is None:
            continue
        # Lines of the same text are added to those that are asked for, as further candidates.
        others = [pair for same in corpus.training if same.name == text.name for pair in same.lines]
        rows = filled(_turned(text.pairs[:CANDIDATES]), _turned(others or lines))
        asked = min(len(text.pairs), CANDIDATES)
        if asked < CANDIDATES:
            call.say(f"{text.name}: {asked:,} held-out lines are scored")
        tasks[_task_name(text.name)] = _task(config, head, kind, text.name, rows)
    if isinstance(head, SentenceHead) and config.text:
        pages = _pages_of(WorkdirLayout(config.folder / "run").corpus(config.language))
        if pages:
            tasks["headings"] = _task(config, head, "retrieval", "headings", filled(pages, []))
    if isinstance(head, LabelHead) and config.test_task:
        tasks[_task_name(Path(config.test_task).stem)] = {
            "kind": "finished-classifier",
            "labels": [*head.labels],
            "test": {config.language: config.test_task},
            "max_length": head.max_length,
        }
    return tasks


def _kind_of(head: FinishedHead) -> str | None:
    """Return the kind of task that compares a text with its translation.

    There is none (None) for a head that scores two texts, of which there are no pairs.
    """
    if isinstance(head, SentenceHead):
        return "retrieval"
    return "same-label" if isinstance(head, LabelHead) and head.applies != "number" else None


def _task_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "pairs"


def _task(
    config: ExtendConfig, head: FinishedHead, kind: str, name: str, rows: list[dict[str, str]]
) -> dict[str, Any]:
    """Write a file of rows, and return the task that reads it."""
    path = config.folder / "test" / f"{_task_name(name)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    task = {"kind": kind, "test": {config.language: str(path)}, "max_length": head.max_length}
    prompts = {"query": head.prompt("query"), "document": head.prompt("passage", "document")}
    if kind == "retrieval" and any(prompts.values()):
        task["prompts"] = prompts
    return task


def _pages_of(folder: Path) -> list[tuple[str, str]]:
    """Return (heading, page) of documents whose first line looks like a heading."""
    corpus = Corpus(folder)
    pages: dict[str, str] = {}
    for document in read_documents([*corpus.held_out, *corpus.training]):
        heading, *rest = (line for line in document if line.strip())
        page = " ".join(rest)[:PAGE_LETTERS]
        is_heading = len(heading.split()) <= HEADING_WORDS and heading[-1] not in ".:,;"
        if is_heading and len(rest) > 1 and len(page) > 2 * len(heading):
            pages.setdefault(heading, page)
        if len(pages) == CANDIDATES:
            break
    return [*pages.items()] if len(pages) >= MIN_PAGES else []


def _turned(pairs: list[Pair]) -> list[tuple[str, str]]:
    """Return (translation, source) of each pair: who asks in the new language finds the old."""
    return [(pair.target, pair.source) for pair in pairs]


def _count_new_tokens(recipe: Recipe, config: ExtendConfig, layout: WorkdirLayout) -> int:
    """Return how many new tokens there are to add, at most as many as are asked for."""
    words, kept_words = words_of_pairs(recipe, layout, config.language)
    assert recipe.base is not None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tokenizer"
        keep_vocabulary(recipe.base, folder)
        guard = guarded_words(recipe.languages.source, config.language, words)
        most = recipe.tokenizer.vocab_size
        return max(1, count_new_pieces(folder, words, kept_words, most, guard))


def _micro_batch(
    values: dict[str, Any], body: BodyConfig, words: np.ndarray, config: ExtendConfig
) -> int:
    """Return how many lines are computed at once.

    They are the most that divide a rank's share of a batch and whose activations take at most
    MICRO_BATCH_BYTES where the lines are long. `words` are the counts of words of lines.
    """
    per_rank = values["adapt"]["batch_size"] // count_ranks(config)
    tokens = MICRO_BATCH_BYTES / (ACTIVATION_BYTES * body.num_layers * body.hidden_size)
    long_line = 2 * float(np.quantile(words, 0.95)) + 2
    sizes = [size for size in range(1, per_rank + 1) if per_rank % size == 0]
    return max(size for size in sizes if size == 1 or size * long_line <= tokens)


# What is looked at.


def _look(call: Call) -> None:
    """Note what became of the model, for the page, unless that is noted."""
    recipe = call.recipe()
    (system,) = recipe.chosen_systems
    language = call.config.language
    layout = WorkdirLayout(recipe.workdir)
    folder = adaptation_of(recipe)
    path = layout.changes(system, language)
    pack = identity(folder / "pack")
    tasks = [task for task in recipe.finetune.tasks.values() if isinstance(task, RetrievalConfig)]
    is_noted = path.exists() and read_model(path, Changes, "delete that file").pack == pack
    if is_noted or not tasks or not isinstance(recipe.body_config.head, SentenceHead):
        return
    body, source = load_model(layout.model(system))
    learned = load_adaptation(folder / "pack", body.space)
    first = load_adaptation(snapshot_folder(folder, 0), body.space)
    prompts = (tasks[0].prompts.get("query", ""), tasks[0].prompts.get("document", ""))
    changes = changes_of(
        View(
            lambda: plugged_module(body, source),
            open_tokenizer(layout.tokenizer(call.config.source)),
            prompts,
        ),
        View(
            lambda: plugged_module(body, whole(learned, source)),
            open_tokenizer(layout.tokenizer(language)),
            prompts,
        ),
        sought=Retrieval().read(tasks[0].test[language], tasks[0], language, None),
        lines=[pair.target for pair in PairCorpus(layout.pairs(language)).lines],
        old_rows=source.embeddings["tokens"].float().numpy(),
        first_rows=first.embeddings["tokens"].float().numpy(),
        pack=pack,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, changes.model_dump())


# The training.


def _score(call: Call) -> None:
    """Score what is aligned, and note the seconds that a line takes, unless that is done."""
    began = time.monotonic()
    call.run(until="evaluate")
    if call.state.seconds_a_line is None:
        counted = 0
        for task in call.recipe().finetune.tasks.values():
            with open(task.test[call.config.language], "rb") as file:
                counted += 4 * sum(1 for _ in file)  # both sides, by two models
        call.note(seconds_a_line=(time.monotonic() - began) / max(1, counted))


def _alignment_message(call: Call) -> str:
    """Say what is found without training, and how long training will take."""
    recipe = call.recipe()
    found = []
    for row in _scores(call, recipe):
        before = row[f"{OF_SOURCE}score"]
        after = row["score"]
        if "queries" in row:
            asked = round(row["queries"])
            right = round(asked * after / 100)
            former = round(asked * before / 100)
            found.append(f"{right:,} of {asked:,} found in {row['task']}, {former:,} before")
        else:
            found.append(f"{after:.1f} % right in {row['task']}, {before:.1f} before")
    said = f"aligned: {'; '.join(found) or 'nothing is held out to be found'}"
    steps = _asked_steps(call, recipe)
    if steps == 0:
        return f"{said}; {call.out / 'model'}"
    if steps is None:
        assert call.config.hours is not None
        time_left = duration(call.config.hours)
    else:
        lines = _lines_of(call, recipe) + steps * recipe.adapt.batch_size * TRAINING_COST
        assert call.state.seconds_a_line is not None
        time_left = f"about {duration(lines * call.state.seconds_a_line / 3600)}"
    return f"{said}; training continues for {time_left}; Ctrl-C keeps {call.out / 'model'}"


def _scores(call: Call, recipe: Recipe) -> list[dict[str, Any]]:
    """Return each task's scores of its last pack."""
    (system,) = recipe.chosen_systems
    layout = WorkdirLayout(recipe.workdir)
    rows = []
    for task in recipe.finetune.tasks:
        folder = layout.evaluate(system, call.config.language, task, recipe.seed)
        rows.append(read_json(folder / SCORES_FILE)[-1])
    return rows


def _lines_of(call: Call, recipe: Recipe) -> int:
    """Return how many lines there are to train on."""
    return TokenStore(WorkdirLayout(recipe.workdir).tokens(call.config.language)).num_documents


def _asked_steps(call: Call, recipe: Recipe) -> int | None:
    """Return the steps that the call asks for; None where it asks for hours."""
    config = call.config
    state = call.state
    batch = recipe.adapt.batch_size
    head = recipe.body_config.head
    if isinstance(head, LabelHead) and head.applies == "number":
        return 0  # its samples are two texts, which pairs of translations are not
    if not _lines_of(call, recipe):
        return 0  # a dictionary has nothing to train on
    if config.hours is not None:
        return state.steps if state.steps and config.hours == state.hours else None
    if config.tokens is not None:
        if config.tokens == 0:
            return 0
        store = TokenStore(WorkdirLayout(recipe.workdir).tokens(config.language))
        a_line = store.num_tokens / store.num_documents
        return max(_fewest_steps(recipe), round(config.tokens / (batch * a_line)))
    if state.steps:
        return state.steps
    return max(_fewest_steps(recipe), EPOCHS * -(-_lines_of(call, recipe) // batch))


def _fewest_steps(recipe: Recipe) -> int:
    """Return the steps into which the warm-up and the decay fit."""
    return math.ceil(recipe.adapt.warmup / 0.75) + 2


def _set_length(call: Call) -> bool:
    """Give the recipe its steps; return whether there are any. UserError where it has more."""
    recipe = call.recipe()
    steps = _asked_steps(call, recipe)
    if steps != 0 and call.config.mini:
        call.set_system("minipost")
        recipe = call.recipe()
    if steps is None:
        steps = _steps_in(call, recipe)
    elif steps and call.config.mini and not call.state.steps:
        call.set("build_mini", "steps", _mini_steps(steps))
    if steps < call.state.steps:
        raise UserError(
            f"{call.path}: a training of {call.state.steps:,} steps is begun; a shorter one takes "
            "another --out"
        )
    call.note(hours=call.config.hours, tokens=call.config.tokens, steps=steps)
    if steps != recipe.adapt.steps:
        call.set("adapt", "steps", steps)
    return steps > 0


def _steps_in(call: Call, recipe: Recipe) -> int:
    """Train the first steps, and return how many fit into the hours by their time."""
    hours = call.config.hours
    assert hours is not None
    adapt = recipe.adapt
    most = MAX_PASSES * -(-_lines_of(call, recipe) // adapt.batch_size)
    if not adapt.steps:
        first = WARM_STEPS + TIMED_STEPS + SPARE_STEPS
        call.set("adapt", "steps", max(_fewest_steps(recipe), first))
        call.run(until="adapt")
        recipe = call.recipe()
    steps_a_second = measured_rate(recipe) / (adapt.batch_size * adapt.seq_length)
    steps = min(int(3600 * hours * steps_a_second), max(most, call.state.steps))
    steps = max(steps, recipe.adapt.steps)
    call.say(
        f"{steps_a_second * adapt.batch_size:,.0f} lines a second here: {steps:,} steps in "
        f"{duration(steps / steps_a_second / 3600)} of training"
    )
    return steps
