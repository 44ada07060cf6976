"""A language added to somebody's model from its text, by one command: a script over the steps of a recipe.

What is chosen here stands in the recipe that is left, and the recipe is what runs.
"""

from __future__ import annotations

import io
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from ds_minimodel.artifacts.adaptation import check_strength
from ds_minimodel.artifacts.base import identity_of_base
from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Content, as_json, atomic_write, lock, paths_of, read_model, write_json
from ds_minimodel.common.names import check_name
from ds_minimodel.common.vocabulary import MOST_UNKNOWN
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf.export import export_adapter, export_hf
from ds_minimodel.hf.kept import LIMITS, STRENGTHS, find_kept
from ds_minimodel.jobs.layout import CALL, EVALUATE, LOCK, RECIPE, WorkdirLayout
from ds_minimodel.pipeline.fertility import fertility
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import do_step, run_step_here, steps_to_run
from ds_minimodel.recipe.base import Base, read_base
from ds_minimodel.recipe.reading import load_recipe, recipe_of_text
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.kept import Kept
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.text.reader import find_text, read_documents
from ds_minimodel.training.config import WARM_UP
from ds_minimodel.training.ranks.launch import has_gpu, name_the_cpu

CONTEXT = 600  # bytes, in which held-out text is scored
HELD_OUT = 0.02  # of the documents
TEST_BYTES = 100_000  # of held-out text that is scored
HOURS = 1.0  # where nothing is said
MOST_PASSES = 4  # over the text
LENGTH, FEWEST_STEPS = 128, 10
BATCHES = {2_000_000: 8, 20_000_000: 32, 1 << 62: 128}  # sequences of a step, up to so many tokens in all
FEWEST_TOKENS = min(BATCHES.values()) * LENGTH  # of the text
OPENINGS, WORDS, CHARACTERS = 5, 6, 60  # of held-out documents, that samples continue; at most so many
FEWEST_NEW, MOST_NEW = 6, 1_000_000  # the fewest are as good as none
ASKED = "hours", "tokens"

TRIED_WIDTH = 576  # of the body by which rates were found (SmolLM2-135M, third study)
FALL = 0.78  # a rate falls with a greater width to this power (LoRA Without Regret, for Llamas)
TOKENS_AT_ONCE = {"cpu": 1024, "gpu": 32_768}  # of a micro-batch: a GPU only launches at fewer
GUESSED_FLOPS = {"cpu": 1e11, "gpu": 1e14}  # a second, by which hours say how large a step is before one was timed
TIMED, UNTIMED = 20, 5  # first steps of a training by hours, by whose time it gets its length, but for the first ones


class Preset(NamedTuple):
    """What trains: a system, its rate, and keys of `adapt` that keep the source: by its text, and of decoders alone."""

    system: str
    rate: float
    by_text: dict[str, Any] = {}
    of_decoders: dict[str, Any] = {}


REHEARSES = {"replay": 0.1, "replay_from": "base"}
PRESETS = {  # by the third study
    "embeddings": Preset("bl_base", 4e-3, by_text={"new_token_penalty": 10.0}),
    "lora": Preset("lora", 2e-3, of_decoders=REHEARSES | {"replay_kl": 9.0}),
    "all": Preset("full", 1e-4, of_decoders=REHEARSES),
}


def extend(
    model: str | Path,
    text: Sequence[str | Path],
    language: str,
    out: str | Path,
    *,
    source: str = "en",
    source_text: Sequence[str | Path] = (),
    chats: Sequence[str | Path] = (),
    hours: float | None = None,
    tokens: int | None = None,
    column: str = "text",
    trains: str | None = None,
    vocab_size: int | None = None,
    strength: float | None = None,
    test_text: Sequence[str | Path] = (),
    keep: Mapping[str, float] = LIMITS,
    ranks: int | None = None,
    hostfile: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Add `language` to a model, and return the folder that `from_pretrained` reads, out/model.

    model: a folder of Hugging Face's, a GGUF file or a name of the Hub; it is read where it lies. text, source_text:
    files, globs or data sets of the language and of one that the model knows, which is scored, and which decides what
    new tokens are left out because they would split it otherwise. chats: files of dialogues (text/chats.py), of which a
    decoder learns to answer in the language, a quarter of the samples. hours: of self-generated replay and training on
    this machine, one by default, at most MOST_PASSES over the text; or tokens: of training. trains: new token
    "embeddings" alone, by which all else stays to the bit, an encoder's default; "lora": a LoRA of the body, too, a
    decoder's; "all": all of its weights. vocab_size: number of new tokens, FEWEST_NEW at least; by default as many as
    pay. strength: merge strength, the share of what the body has learned that out/model keeps; by default of a decoder
    the largest that keeps `keep`, what may get worse, in percent, of what hf/kept.py looks at ({}: all that was learned
    is kept). test_text: files of other text, of any language, that it looks at, too. A decoder whose body trains
    replays what it writes by itself (hf/rehearsal.py). ranks, hostfile: on which it trains, as of `run`. out gets the
    recipe, its workdir run/ with the page run/report/report.html, model/, and adapter/ of "lora" for PEFT; the
    same call goes on where one was interrupted, with more hours or tokens it makes the training longer, and another is
    refused. UserError as of the steps that it takes.
    """
    out, model = Path(out), str(model)
    name_the_cpu()
    texts = {source: paths_of(source_text), language: paths_of(text)}
    _check(texts, source, language, hours, tokens, trains, vocab_size, strength)
    for name in {*keep} - {*LIMITS}:
        raise UserError(f"extend: nothing is called {name} that could be kept; give {', '.join(LIMITS)}")
    others = [str(file) for file in find_text(test_text)]
    files = [file for file in find_text(itertools.chain(*texts.values(), paths_of(chats))) if isinstance(file, Path)]
    call: dict[str, Any] = {"out": str(out), "model": model, "source": source, "language": language}
    call |= {"texts": texts, "column": column, "trains": trains, "vocab_size": vocab_size, "strength": strength}
    call["chats"] = paths_of(chats)
    call["files"] = {f"{model}: {name}": content for name, content in identity_of_base(model).items()}
    call["files"] |= {str(file): Content.of(file) for file in files}
    with lock(out / LOCK):
        state, path = _begin(out, call), out / RECIPE
        asked = {"hours": hours, "tokens": tokens}
        if hours is None and tokens is None:
            asked = {key: state.get(key) for key in ASKED} if "hours" in state else {"hours": HOURS, "tokens": None}
        if not source_text:
            say(f"{source}: without --source-text it is not scored, and new tokens may split it otherwise")
        if not path.exists():
            values = first_values(read_base(model), out, texts, column, source, language, trains, strength)
            values["base"] = model
            values["data"] |= {"chats": {language: call["chats"]}} if chats else {}
            _read(recipe_of_text(_yaml(values), "the recipe of extend"), say)
            _choose(values, language, vocab_size, asked, say)
            _write(path, values)
        recipe = _own_recipe(path, language)
        openings = _openings(out / "test" / f"{language}.txt")
        places = {"path": path, "ranks": ranks, "hostfile": hostfile}
        state = _set_length(out, recipe, state, asked, places, say)
        recipe = _own_recipe(path, language)
        _run(recipe, places, until="adapt")
        strengths = [strength] if strength else STRENGTHS if keep else [1.0]
        kept = _look(out, recipe, others, openings, strengths, keep, say) if recipe.trained_by.causal else None
        recipe = _own_recipe(path, language)
        _run(recipe, places)
        _export(out, recipe, state, kept)
    return out / "model"


def _check(
    texts: dict[str, list[str]],
    source: str,
    language: str,
    hours: float | None,
    tokens: int | None,
    trains: str | None,
    vocab_size: int | None,
    strength: float | None,
) -> None:
    """UserError for what is wrong whatever the files hold."""
    if hours is not None and tokens is not None:
        raise UserError("extend: give hours or tokens, not both")
    if language == source:
        raise UserError(f"extend: {language} is the language that the model knows; --source names another")
    for name in texts:
        try:
            check_name(name)
        except ValueError as error:
            raise UserError(f"extend: the language {error}") from None
    if vocab_size is not None and not FEWEST_NEW <= vocab_size <= MOST_NEW:
        raise UserError(f"--vocab-size {vocab_size:,}: give {FEWEST_NEW} to {MOST_NEW:,} new tokens")
    if trains not in (None, *PRESETS):
        raise UserError(f"extend: nothing is called {trains} that could train; give {', '.join(PRESETS)}")
    for name, amount in (("hours", hours), ("tokens", tokens)):
        if amount is not None and amount <= 0:
            raise UserError(f"extend: {amount:g} {name}; give more than none")
    if strength is not None:
        check_strength(strength)


def _begin(out: Path, call: dict[str, Any]) -> dict[str, Any]:
    """Write down what is asked for, and return that with what was done; UserError where `out` is of another call."""
    former = read_model(out / CALL, dict[str, Any], "delete that file") if (out / CALL).exists() else {}
    call, hashes = as_json(call, former.get("hashes", {}))
    if not former and {*out.iterdir()} > {out / LOCK}:
        raise UserError(f"{out}: exists and was not begun by extend; give another --out")
    if (out / RECIPE).exists():
        before, now = former.get("files", {}), call["files"]
        for file in sorted(before.keys() | now):
            if before.get(file) != now.get(file):
                raise UserError(f"{file}: another file than {out} was begun with; put it back, or give another --out")
        for name, value in call.items():
            if former.get(name) != value:
                was = f"no {name}" if former.get(name) is None else f"{name} {former[name]}"
                raise UserError(f"{out}: was begun with {was}; give another --out, or that again")
    state = former | call | {"hashes": former.get("hashes", {}) | hashes}
    write_json(out / CALL, state)
    return state


def _own_recipe(path: Path, language: str) -> Recipe:
    """The recipe, which may have been edited; UserError where it makes no one model of the language."""
    recipe = load_recipe(path)
    if len(recipe.systems) != 1 or recipe.languages.targets != [language]:
        raise UserError(
            f"{path}: systems and languages.targets: extend makes one model of {language}; take out what was added, or "
            f"use `ds-minimodel run {path}`"
        )
    return recipe


# What is chosen.


def _read(recipe: Recipe, say: Callable[[str], None]) -> None:
    """Read the text of each language into its corpus, and write its test file from documents that are held out there.

    UserError where there is too little.
    """
    run_step_here(STEPS["corpus"], recipe, rebuild=True)
    (task,) = recipe.finetune.tasks.values()
    for language, path in task.test.items():
        corpus, first = Corpus(WorkdirLayout(recipe.workdir).corpus(language)), recipe.data.text[language][0]
        if (whole := sum(corpus.facts.bytes)) < FEWEST_TOKENS:  # no token is shorter than a byte
            raise UserError(
                f"{first}: {whole:,} bytes are less than a step of {FEWEST_TOKENS:,} tokens; give more text"
            )
        if not corpus.held_out:
            raise UserError(
                f"{first}: none of its documents is among the {HELD_OUT:.0%} held out; give a longer text, with an "
                "empty line between documents"
            )
        if corpus.facts.bytes[1] < TEST_BYTES / 10:
            say(f"{language}: only {corpus.facts.bytes[1]:,} bytes are held out, and scores of so little say little")
        size = 0
        with atomic_write(path) as file:
            for document in read_documents(corpus.held_out):
                if size < TEST_BYTES:
                    size += file.write("\n".join([*document, "\n"]).encode())


def _openings(path: Path) -> list[str]:
    """The first words of some held-out documents."""
    documents = itertools.islice(read_documents([path]), OPENINGS)
    return [" ".join(" ".join(document).split()[:WORDS])[:CHARACTERS] for document in documents]


def first_values(
    base: Base,
    out: Path,
    texts: dict[str, list[str]],
    column: str,
    source: str,
    language: str,
    trains: str | None,
    strength: float | None,
) -> dict[str, Any]:
    """The recipe but for its base, and what _choose decides."""
    way = PRESETS[trains or ("lora" if base.config.causal else "embeddings")]
    if strength is not None and not SYSTEMS[way.system].trains:
        raise UserError(
            "--strength: only token embeddings train here, so there is no change of the body to merge; leave it out"
        )
    positions, device = base.config.max_positions, "gpu" if has_gpu() else "cpu"
    kind = "bits-per-byte" if base.config.causal else "pseudo-likelihood"
    longest = min(positions, 1024)
    most = min(CONTEXT, longest - 2)  # a token is a byte at least, and two may stand around
    given = {name: files for name, files in texts.items() if files}
    tests = {name: str(out / "test" / f"{name}.txt") for name in given}
    task = {"kind": kind, "test": tests, "context_bytes": most, "max_length": longest}
    return {
        "workdir": str(out / "run"),
        "systems": [way.system],
        "languages": {"source": source, "targets": [language]},
        "tokenizer": {"vocabulary": "extend", "vocab_size": FEWEST_NEW},
        "data": {"text": given, "column": column, "held_out": HELD_OUT},
        "optimizer": {"clip": 1.0, "weight_decay": 0.0},
        "adapt": {
            "steps": FEWEST_STEPS,
            "batch_size": min(BATCHES.values()),
            "seq_length": min(positions, LENGTH),
            "lr": float(f"{way.rate * min(1.0, TRIED_WIDTH / base.config.hidden_size) ** FALL:.2g}"),
            "schedule": "wsd",
            "warmup_steps": 1,
            **(way.by_text if source in given else {}),
            **(way.of_decoders if base.config.causal else {}),
            **({} if strength is None else {"strength": strength}),
        },
        "finetune": {"tasks": {kind: task}},
        "engine": {"zero_stage": 0, "micro_batch_size": max(1, TOKENS_AT_ONCE[device] // LENGTH)},
    }


def _choose(
    values: dict[str, Any], language: str, vocab_size: int | None, asked: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Choose the number of new tokens, where none is given, by what a byte of text then costs, and the size of a step.

    A sample has as many bytes as LENGTH of the tokens that would pay.
    """
    values["tokenizer"]["vocab_size"] = vocab_size or FEWEST_NEW  # of which fertility has a row, too
    recipe = recipe_of_text(_yaml(values), "the recipe of extend")
    found = {row["new_pieces"]: row for row in fertility(recipe)}
    before, (best,) = found[0], [row for row in found.values() if row["best"]]
    if best["tokens"] < FEWEST_TOKENS:
        raise UserError(
            f"{language}: {best['tokens']:,} tokens of text are less than a step of {FEWEST_TOKENS:,}; give more text"
        )
    if vocab_size is None and best["new_pieces"] < FEWEST_NEW:
        raise UserError(
            f"{language}: no new tokens pay: they occur too seldom in this text, or the model's own split it as well; "
            f"give more text, or --vocab-size {FEWEST_NEW} where the body trains"
        )
    vocab_size = vocab_size or best["new_pieces"]
    chosen = found.get(vocab_size)
    if chosen is None:
        raise UserError(
            f"{language}: the text offers no {vocab_size:,} new tokens; lower --vocab-size or give more text"
        )
    if chosen["unknown"] > MOST_UNKNOWN:
        raise UserError(
            f"{language}: {chosen['unknown']:.0%} of the text stays unknown with {vocab_size:,} new tokens; "
            "raise --vocab-size"
        )
    adapt, config = values["adapt"], recipe.body_config
    adapt["seq_length"] = min(config.max_positions, round(LENGTH * best["bytes_per_token"] / chosen["bytes_per_token"]))
    values["tokenizer"]["vocab_size"] = vocab_size
    of_best = "" if chosen is best else f", with {best['new_pieces']:,} {best['bytes_per_token']:.2f}"
    say(
        f"{language}: {vocab_size:,} new tokens, {chosen['bytes_per_token']:.2f} bytes per token (before "
        f"{before['bytes_per_token']:.2f}{of_best}); {chosen['tokens']:,} tokens of text"
    )
    most, device = MOST_PASSES * chosen["tokens"], "gpu" if has_gpu() else "cpu"
    a_token = chosen["flops_per_byte"] * chosen["bytes_per_token"]
    guessed = asked["tokens"] or min(int(3600 * asked["hours"] * GUESSED_FLOPS[device] / a_token), most)
    batch = next(size for limit, size in BATCHES.items() if guessed <= limit)
    steps = max(FEWEST_STEPS, guessed // (batch * adapt["seq_length"]))
    at_once = max(1, TOKENS_AT_ONCE[device] // adapt["seq_length"])
    values["engine"]["micro_batch_size"] = max(
        size for size in range(1, batch + 1) if batch % size == 0 and size <= at_once
    )
    adapt |= {"batch_size": batch, "steps": steps, "warmup_steps": round(WARM_UP * steps)}
    if asked["tokens"] is None:  # it begins with steps that are timed
        adapt |= {"steps": TIMED + UNTIMED + 5, "warmup_steps": min(adapt["warmup_steps"], TIMED)}
    if config.hidden_size != TRIED_WIDTH:
        say(f"rate {adapt['lr']:g}: not tried at this width ({config.hidden_size:,}); found at {TRIED_WIDTH}")


# How long it trains.


def _set_length(
    out: Path,
    recipe: Recipe,
    state: dict[str, Any],
    asked: dict[str, Any],
    places: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Give the recipe the steps that hours or tokens ask for; UserError where it has more. The new state."""
    adapt, path = recipe.adapt, out / RECIPE
    a_step, had = adapt.batch_size * adapt.seq_length, adapt.steps
    if all(state.get(key) == asked[key] for key in ASKED) and "steps" in state:
        steps = state["steps"]
    elif asked["tokens"] is not None:
        steps = max(FEWEST_STEPS, asked["tokens"] // a_step)
        if steps * a_step > asked["tokens"]:
            say(f"{asked['tokens']:,} tokens: {steps * a_step:,} are trained on, {FEWEST_STEPS} steps, the fewest")
    else:
        steps = _steps_in(out, recipe, asked["hours"], places, say)
    if steps < state.get("steps", 0):
        raise UserError(f"{path}: has {had * a_step:,} tokens of training already; a shorter one takes another --out")
    if steps == state.get("steps") and any(state.get(key) != asked[key] for key in ASKED):
        say(f"{path}: has as many")
    if steps != had:
        if adapt.schedule != "wsd":
            raise UserError(f"{path}: its rate falls from the start, so it cannot be made longer; give another --out")
        steps_to_run(load_recipe(path, [f"adapt.steps={steps}"]), 1, rebuild=False)
    state = state | asked | {"steps": steps}
    write_json(out / CALL, state)  # what is chosen is kept first, for after a kill
    if steps != had:
        _set(path, "steps", steps)
    return state


def _steps_in(out: Path, recipe: Recipe, hours: float, places: dict[str, Any], say: Callable[[str], None]) -> int:
    """Steps that fit into so many hours, with what goes before: by the time of the first ones, which stay."""
    (system,), (target,) = recipe.chosen_systems, recipe.languages.targets
    begun, adapt = time.monotonic(), recipe.adapt
    metrics = WorkdirLayout(recipe.workdir).adapt(system, target) / "run/metrics.jsonl"
    _run(recipe, places, until="adapt")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    rates = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row][UNTIMED:]
    rate, a_step = statistics.median(rates), adapt.batch_size * adapt.seq_length
    seconds = 3600 * hours - (time.monotonic() - begun) + adapt.steps * a_step / rate
    one_pass = TokenStore(WorkdirLayout(recipe.workdir).tokens(target)).num_tokens
    tokens, most = int(max(0, seconds) * rate), MOST_PASSES * one_pass
    passes = f", {MOST_PASSES} passes over the text, the most" if tokens >= most else ""
    tokens = max(min(tokens, most), adapt.steps * a_step)
    say(f"{rate:,.0f} tokens a second here: {tokens:,} tokens{passes} in {tokens / rate / 3600:.1f} hours of training")
    return tokens // a_step


def _run(recipe: Recipe, places: dict[str, Any], until: str | None = None) -> None:
    """Take the steps of the recipe, or those up to one, on its ranks."""
    for step in steps_to_run(recipe, places["ranks"] or 1, rebuild=False):
        code = do_step(step, recipe, **places)
        if code:
            raise SystemExit(code)  # ranks have said why
        if step.name == until:
            return


# What comes out.


def _look(
    out: Path,
    recipe: Recipe,
    others: list[str],
    openings: list[str],
    strengths: Sequence[float],
    limits: Mapping[str, float],
    say: Callable[[str], None],
) -> Kept:
    """What a decoder has kept; the recipe gets the strength that keeps enough."""
    layout, (system,), (target,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems, recipe.languages.targets
    source, pack, path = recipe.languages.source, layout.adapt(system, target) / "pack", out / RECIPE
    held_out = {name: str(file) for name in (source, target) if (file := out / f"test/{name}.txt").exists()}
    places = layout.model(system), layout.tokenizer(source), pack, layout.kept(system, target)
    kept = find_kept(*places, held_out, source, others, strengths, limits, recipe.data.column, openings, say)
    if kept.strength != recipe.adapt.of(system).strength:
        shutil.rmtree(layout.root / EVALUATE / system.name / target, ignore_errors=True)  # scores of another strength
        _set(path, "strength", kept.strength)
    return kept


def _export(out: Path, recipe: Recipe, state: dict[str, Any], kept: Kept | None) -> None:
    """Write out/model and out/adapter where they are not as they were, or of another training."""
    layout, (system,), (target,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems, recipe.languages.targets
    pack, model = layout.adapt(system, target) / "pack", out / "model"
    base, strength = layout.model(system), recipe.adapt.of(system).strength

    def exported() -> tuple[Any, dict[str, str]]:
        found = [file for folder in (model, out / "adapter") for file in sorted(folder.glob("*")) if file.is_file()]
        files = {str(file.relative_to(out)): Content.of(file) for file in found if file.name != "README.md"}
        return as_json(
            {"pack": identity(pack), "strength": strength, "kept": kept and kept.key, "files": files}, state["hashes"]
        )

    is_new = state.get("exported") != exported()[0]
    if is_new:
        _replace(model, lambda new: export_hf(base, new, pack, strength=strength))
        if system.trains == "low-rank":
            _replace(out / "adapter", lambda new: export_adapter(base, new, pack, strength))
        written, hashes = exported()
        write_json(out / CALL, state | {"exported": written, "hashes": state["hashes"] | hashes})


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` write a folder anew that then takes the place of `path`."""
    new = path.with_name(f"{path.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write(new)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    new.rename(path)


def _set(path: Path, key: str, value: float) -> None:
    """Give a key of the recipe's section adapt another value; all else stays as it is written."""
    values = YAML().load(path)
    values["adapt"][key] = value
    _write(path, values)


def _write(path: Path, values: Any) -> None:
    with atomic_write(path) as file:
        file.write(_yaml(values).encode())


def _yaml(values: Any) -> str:
    stream = io.StringIO()
    YAML().dump(values, stream)
    return stream.getvalue()
