"""A language added to somebody's model from its text, by one dial: how long, or how many tokens.

What is chosen here stands in the recipe that is written, and the recipe is what runs.
"""

from __future__ import annotations

import io
import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write, lock, read_model, write_json
from ds_minimodel.common.names import check_name
from ds_minimodel.common.vocabulary import MOST_UNKNOWN
from ds_minimodel.costs.measure import measured_rows
from ds_minimodel.data.reader import find_text, read_documents
from ds_minimodel.data.samples import is_held_out
from ds_minimodel.hf.convert import export_hf, import_model
from ds_minimodel.hf.rehearsal import rehearse
from ds_minimodel.hf.samples import samples, samples_page
from ds_minimodel.jobs.layout import WorkdirLayout
from ds_minimodel.models.artifacts import identity
from ds_minimodel.recipe.base import REHEARSAL, Base, read_base
from ds_minimodel.recipe.reading import load_recipe, recipe_of_text
from ds_minimodel.recipe.schema import WARM_UP, Recipe
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.steps.fertility import fertility
from ds_minimodel.steps.run import run_recipe, steps_to_run
from ds_minimodel.training.ranks.launch import name_the_cpu
from ds_minimodel.training.ranks.world import join_ranks

CONTEXT = 600  # bytes, in which held-out text is scored
HELD_OUT = 0.02  # of the documents
TEST_BYTES = 100_000  # of held-out text that is scored
HOURS = 1.0  # where nothing is said
MOST_PASSES = 4  # over the text
LENGTH = 128
BATCHES = {2_000_000: 8, 20_000_000: 32, 1 << 62: 128}  # sequences of a step, up to so many tokens in all
FEWEST_TOKENS = min(BATCHES.values()) * LENGTH  # of the text
MOST_REHEARSED = 200_000  # tokens that the model writes by itself, where more are trained on


class Way(NamedTuple):
    """What trains: a system, its rate, and keys of `adapt` that keep the source: by its text, and of decoders alone."""

    system: str
    rate: float
    by_text: dict[str, Any] = {}
    of_decoders: dict[str, Any] = {}


REHEARSES = {"replay": 0.1, "replay_from": "base"}
WAYS = {  # by the third study
    "rows": Way("bl_base", 4e-3, by_text={"guard": 10.0}),
    "lora": Way("lora", 2e-3, of_decoders=REHEARSES | {"strength": 0.75}),
    "all": Way("full", 1e-4, of_decoders=REHEARSES),
}
OPENINGS, WORDS, CHARACTERS = 5, 6, 60  # of held-out documents, that samples continue; at most so many
FEWEST_PIECES, MOST_PIECES = 6, 1_000_000  # the fewest are as good as none
CALL, RECIPE, LOCK = "call.json", "recipe.yaml", ".lock"
QUESTIONS = "What is the capital of France?", "Name three colours.", "What is two plus three?"


def extend(
    model: str | Path,
    text: Sequence[str | Path],
    language: str,
    out: str | Path,
    *,
    source: str = "en",
    source_text: Sequence[str | Path] = (),
    hours: float | None = None,
    tokens: int | None = None,
    column: str = "text",
    trains: str | None = None,
    pieces: int | None = None,
    strength: float | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Add `language` to a model, and return the folder that `from_pretrained` reads, out/model.

    model: a folder of Hugging Face's, a GGUF file or a name of the Hub. text, source_text: files, globs or data sets of
    the language and of one that the model knows, which is scored, and by which rows alone are guarded and new pieces
    left out that would cut it otherwise. hours: of rehearsal and training on this machine, one by default, at most
    MOST_PASSES over the text; or tokens: of training. trains: the "rows" of new pieces alone, by which all else stays
    to the bit, an encoder's default; "lora": low-rank updates of the body, too, a decoder's; "all": all of its weights.
    pieces: how many are new, FEWEST_PIECES at least; by default as many as pay. strength: share of what the body has
    learned that it keeps, 0.75 of a decoder's "lora" by default: less keeps more of what the model was. A decoder whose
    body trains rehearses what it writes by itself (hf/rehearsal.py). out gets base/, the recipe, its workdir run/,
    model/ and, of what predicts next tokens, samples.md; the same call goes on where one was interrupted, with more
    hours or tokens it makes the training longer, and another is refused. UserError as of the steps that it takes.
    """
    out = Path(out)
    name_the_cpu()
    base, path = out / "base", out / RECIPE
    texts = {source: [*map(str, source_text)], language: [*map(str, text)]}
    if hours is not None and tokens is not None:
        raise UserError("extend: give hours or tokens, not both")
    if language == source:
        raise UserError(f"extend: {language} is the language that the model knows; --source names another")
    for name, files in texts.items():
        try:
            check_name(name)
        except ValueError as error:
            raise UserError(f"extend: the language {error}") from None
        find_text(files)
    if pieces is not None and not FEWEST_PIECES <= pieces <= MOST_PIECES:
        raise UserError(f"extend: {pieces:,} new pieces; give {FEWEST_PIECES} to {MOST_PIECES:,}")
    if trains not in (None, *WAYS):
        raise UserError(f"extend: nothing is called {trains} that could train; give {', '.join(WAYS)}")
    if strength is not None and not 0 < strength <= 1:
        raise UserError(f"extend: a strength of {strength:g}; give one above 0, at most 1")
    call: dict[str, Any] = {"out": str(out), "model": str(model), "source": source, "language": language}
    call |= {"texts": texts, "column": column, "trains": trains, "pieces": pieces, "strength": strength}
    with lock(out / LOCK):
        former = _begin(out, call)
        if hours is None and tokens is None:
            hours, tokens = former.get("hours"), former.get("tokens")
        if hours is None and tokens is None:
            hours = HOURS
        length = {"hours": hours, "tokens": tokens}
        tests = {} if path.exists() else _tests(out, texts, column, say)  # the import takes longer
        if not source_text:
            say(f"{source}: without --source-text it is not scored, and new pieces may cut it otherwise")
        if not base.exists():
            say(f"{base}: the model comes in")
            import_model(model, base, source)
        if not path.exists():
            values = first_values(read_base(base), out, texts, tests, column, source, language, trains, strength)
            _choose(values, language, pieces, hours, tokens, say)
            with atomic_write(path) as file:
                file.write(_yaml(values).encode())
        elif any(former.get(name) != value for name, value in length.items()):
            _make_longer(path, hours, tokens, say)
        write_json(out / CALL, former | call | length)
        recipe = load_recipe(path)
        run_recipe(recipe)
        exported = _export(out, recipe, former.get("exported"))
        write_json(out / CALL, call | length | {"exported": exported})
    return out / "model"


def _export(out: Path, recipe: Recipe, former: str | None) -> str:
    """Write out/model and its samples where they are missing or of another pack; the identity of this one."""
    layout, (system,), (target,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems, recipe.languages.targets
    pack, model, page = layout.adapt(system, target) / "pack", out / "model", out / "samples.md"
    is_new = former != (exported := identity(pack)) or not model.exists()
    if is_new:
        shutil.rmtree(new := out / "model.new", ignore_errors=True)
        export_hf(layout.pretrain(system) / "body", new, pack)
        if model.is_symlink():
            model.unlink()
        elif model.exists():
            shutil.rmtree(model)
        new.rename(model)
    if recipe.trained_by.causal and (is_new or not page.exists()):
        places, prompts = {"before": out / "before", "after": model}, (_openings(recipe, target), QUESTIONS)
        shutil.rmtree(places["before"], ignore_errors=True)
        export_hf(out / "base/body", places["before"])
        written = {name: samples(place, *prompts) for name, place in places.items()}
        shutil.rmtree(places["before"])
        with atomic_write(page) as file:
            file.write(samples_page(written).encode())
    return exported


def _begin(out: Path, call: dict[str, Any]) -> dict[str, Any]:
    """Write down what is asked for, and return the former call; UserError where `out` is of another, or of none."""
    former = read_model(out / CALL, dict[str, Any], "delete that file") if (out / CALL).exists() else {}
    if not former and {*out.iterdir()} > {out / LOCK}:
        raise UserError(f"{out}: exists and was not begun by extend; give another --out")
    decided = list(call) if (out / RECIPE).exists() else ["model", "source"] if (out / "base").exists() else []
    for name in decided:
        if former.get(name) != call[name]:
            was = f"no {name}" if former.get(name) is None else f"{name} {former[name]}"
            raise UserError(f"{out}: was begun with {was}; give another --out, or that again")
    write_json(out / CALL, former | call)
    return former


def _make_longer(path: Path, hours: float | None, tokens: int | None, say: Callable[[str], None]) -> None:
    """Give the recipe more steps; UserError where they are fewer, or what it has made is not as it was."""
    recipe, yaml = load_recipe(path), YAML()
    adapt = recipe.adapt
    if adapt.schedule != "constant":
        raise UserError(f"{path}: its rate falls from the start, so it cannot be made longer; give another --out")
    steps_to_run(recipe, 1, rebuild=False)
    if tokens is None:
        one_pass = next(row["tokens"] for row in fertility(recipe) if row["new_pieces"] == recipe.tokenizer.vocab_size)
        tokens = _tokens(recipe, one_pass, hours, None, say)
    steps, had = tokens // (adapt.batch_size * adapt.seq_length), adapt.steps * adapt.batch_size * adapt.seq_length
    if steps < adapt.steps:
        raise UserError(f"{path}: has {had:,} tokens of training already; a shorter one takes another --out")
    if steps == adapt.steps:
        say(f"{path}: has as many")
        return
    values = yaml.load(path)
    values["adapt"]["steps"] = steps
    with atomic_write(path) as file:
        yaml.dump(values, file)


def _openings(recipe: Recipe, language: str) -> list[str]:
    """The first words of some held-out documents."""
    path = recipe.finetune.tasks["text"].test[language]
    documents = itertools.islice(read_documents([path]), OPENINGS)
    return [" ".join(" ".join(document).split()[:WORDS])[:CHARACTERS] for document in documents]


def _tests(out: Path, texts: dict[str, list[str]], column: str, say: Callable[[str], None]) -> dict[str, str]:
    """Held-out documents of each language as a file: {language: path}. They are those that training leaves out."""
    tests = {}
    for language, files in texts.items():
        if not files:
            continue
        chosen, size, whole = list[str](), 0, 0
        for document in read_documents(files, column):
            whole += sum(len(line.encode()) + 1 for line in document)
            if is_held_out(document, HELD_OUT):
                chosen.append("\n".join(document) + "\n")
                size += len(chosen[-1].encode())
                if size >= TEST_BYTES:
                    break
        if whole < FEWEST_TOKENS:  # no token is shorter than a byte
            raise UserError(
                f"{files[0]}: {whole:,} bytes are less than a step of {FEWEST_TOKENS:,} tokens; give more text"
            )
        if not chosen:
            raise UserError(
                f"{files[0]}: none of its documents is among the {HELD_OUT:.0%} held out; give a longer text, with an "
                "empty line between documents"
            )
        if size < TEST_BYTES / 10:
            say(f"{language}: only {size:,} bytes are held out, and scores of so little say little")
        path = out / "test" / f"{language}.txt"
        with atomic_write(path) as file:
            file.write("\n".join(chosen).encode())
        tests[language] = str(path)
    return tests


def first_values(
    base: Base,
    out: Path,
    texts: dict[str, list[str]],
    tests: dict[str, str],
    column: str,
    source: str,
    language: str,
    trains: str | None,
    strength: float | None,
) -> dict[str, Any]:
    """The recipe but for what _choose decides."""
    way = WAYS[trains or ("lora" if base.config.causal else "rows")]
    if strength is not None and not SYSTEMS[way.system].trains:
        raise UserError("extend: a strength is of a body that trains, and rows alone do here; leave it out")
    positions = base.config.max_positions
    kind, longest = "text" if base.config.causal else "hidden", min(positions, 1024)
    most = min(CONTEXT, longest - 2)  # a token is a byte at least, and two may stand around
    task = {"kind": kind, "test": tests, "context_bytes": most, "max_length": longest}
    given = {name: files for name, files in texts.items() if files}
    return {
        "workdir": str(out / "run"),
        "base": str(out / "base"),
        "systems": [way.system],
        "languages": {"source": source, "targets": [language]},
        "tokenizer": {"vocabulary": "extend", "vocab_size": FEWEST_PIECES},
        "data": {"text": given, "column": column, "held_out": HELD_OUT},
        "adapt": {
            "steps": 10,
            "batch_size": 8,
            "seq_length": min(positions, LENGTH),
            "lr": way.rate,
            "schedule": "constant",
            "warmup_steps": 1,
            "clip": 1.0,
            "weight_decay": 0.0,
            **(way.by_text if source in given else {}),
            **(way.of_decoders if base.config.causal else {}),
            **({} if strength is None else {"strength": strength}),
        },
        "finetune": {"tasks": {kind: task}},
        "engine": {"zero_stage": 0, "micro_batch_size": 8},
    }


def _choose(
    values: dict[str, Any],
    language: str,
    pieces: int | None,
    hours: float | None,
    tokens: int | None,
    say: Callable[[str], None],
) -> None:
    """Choose the number of new pieces, where none is given, by what a byte of text then costs, and the steps by hours
    or tokens. A sample has as many bytes as LENGTH of the tokens that would pay.
    """
    values["tokenizer"]["vocab_size"] = pieces or FEWEST_PIECES  # of which fertility has a row, too
    recipe = _recipe(values)
    found = {row["new_pieces"]: row for row in fertility(recipe)}
    before, (best,) = found[0], [row for row in found.values() if row["best"]]
    if best["tokens"] < FEWEST_TOKENS:
        raise UserError(
            f"{language}: {best['tokens']:,} tokens of text are less than a step of {FEWEST_TOKENS:,}; give more text"
        )
    if pieces is None and best["new_pieces"] < FEWEST_PIECES:
        raise UserError(
            f"{language}: no new pieces pay: they occur too seldom in this text, or the model's own cut it as well; "
            f"give more text, or --pieces {FEWEST_PIECES} where the body trains"
        )
    pieces = pieces or best["new_pieces"]
    chosen = found.get(pieces)
    if chosen is None:
        raise UserError(f"{language}: the text has no {pieces:,} new pieces to offer; lower --pieces or give more text")
    if chosen["unknown"] > MOST_UNKNOWN:
        raise UserError(
            f"{language}: {chosen['unknown']:.0%} of the text stays unknown with {pieces:,} new pieces; raise --pieces"
        )
    length = round(LENGTH * best["bytes_per_token"] / chosen["bytes_per_token"])  # as many bytes
    values["adapt"]["seq_length"] = min(recipe.body_config.max_positions, length)
    values["tokenizer"]["vocab_size"] = pieces
    of_best = "" if chosen is best else f", with {best['new_pieces']:,} {best['bytes_per_token']:.2f}"
    say(
        f"{language}: {pieces:,} new pieces, {chosen['bytes_per_token']:.2f} bytes a token (before "
        f"{before['bytes_per_token']:.2f}{of_best}); {chosen['tokens']:,} tokens of text"
    )
    tokens = _tokens(_recipe(values), chosen["tokens"], hours, tokens, say)
    batch = next(size for most, size in BATCHES.items() if tokens <= most)
    steps = max(10, tokens // (batch * values["adapt"]["seq_length"]))
    values["adapt"] |= {"batch_size": batch, "steps": steps, "warmup_steps": round(WARM_UP * steps)}


def _tokens(recipe: Recipe, one_pass: int, hours: float | None, tokens: int | None, say: Callable[[str], None]) -> int:
    """How many tokens the training has, by hours or tokens: those of MOST_PASSES over the text at most.

    What a model writes by itself, to rehearse it, is written here, and its time is of the hours.
    """
    measured, *_ = measured_rows(recipe, "adapt", join_ranks(1))
    rate, most = measured["tokens_per_second"], MOST_PASSES * one_pass
    seconds = 3600 * (hours or 0)
    rehearsal = Path(str(recipe.base)) / REHEARSAL
    if recipe.rehearses and not rehearsal.exists():
        own = int(recipe.adapt.replay * (tokens or min(seconds * rate, most)))
        own, begun = min(own, MOST_REHEARSED), time.monotonic()
        say(f"{rehearsal}: the model writes {own:,} tokens by itself, on which it rehearses")
        rehearse(rehearsal.parent, max(1, own), recipe.seed)
        seconds -= time.monotonic() - begun
    tokens = tokens or min(int(max(seconds, 0) * rate), most)
    passes = f", {MOST_PASSES} passes over the text, the most" if tokens == most else ""
    say(f"{rate:,.0f} tokens a second here: {tokens:,} tokens{passes} in {tokens / rate / 3600:.1f} hours of training")
    return tokens


def _recipe(values: dict[str, Any]) -> Recipe:
    return recipe_of_text(_yaml(values), "the recipe of extend")


def _yaml(values: dict[str, Any]) -> str:
    stream = io.StringIO()
    YAML().dump(values, stream)
    return stream.getvalue()
