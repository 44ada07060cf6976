"""Which jobs a key of the recipe outdates: of every key, without making anything."""

import pytest

from ds_minimodel.common.config import Section
from ds_minimodel.common.files import as_json, write_json
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.training.config import AdamWConfig

from .conftest import make_world

pytestmark = pytest.mark.slow

ON_TEXT = {"pretrain", "build-mini", "adapt"}
TRAINING = "mask_prob steps batch_size seq_length lr warmup_steps".split()

# Jobs by what they are made from: step, or step/system where not all systems read it. What comes
# after them follows.
TABLE: dict[str, set[str]] = {
    "seed": ON_TEXT,  # of task models it names the folders
    "tokenizer.vocabulary tokenizer.kind tokenizer.vocab_size tokenizer.character_coverage "
    "tokenizer.input_sentences": {"tokenizer"},
    "data.text data.column data.draw data.min_words": {"corpus"},
    "data.chats": {"prepare/chats-xx"},
    "data.pairs data.test_pairs": {"corpus/pairs-xx"},
    "data.pair_columns": {"corpus/pairs-xx"},
    "data.blocks": ON_TEXT,
    "data.held_out": ON_TEXT | {"corpus"},
    "data.workers": set(),
    "model.num_layers": {"pretrain", *(f"adapt/{name}" for name in ("bl_base", "full", "lora"))},
    "model.kind model.hidden_size model.num_heads model.ffn_size model.max_positions "
    "model.dropout": {"pretrain"},
    "model.attention_dropout model.norm_eps": {"pretrain"},
    "mini.depth": {"pretrain/bl_small", "pretrain/minijoint", "build-mini"}
    | {f"adapt/{name}" for name in ("bl_small", "minijoint", "minipost")},
    "mini.new_layers": {"build-mini", "adapt/minipost"},
    **{
        f"{section}.{key}": {step}
        for section, step in (("pretrain", "pretrain"), ("build_mini", "build-mini"))
        for key in TRAINING
    },
    **{f"adapt.{key}": {"adapt"} for key in TRAINING},
    "build_mini.initialisation": {"build-mini"},
    "adapt.schedule adapt.initialisation adapt.replay": {"adapt"},
    "adapt.snapshot_every adapt.snapshot_at": {"adapt"},
    "adapt.replay_kl adapt.rank": {"adapt/lora"},
    "adapt.replay_from adapt.chat_share": {"adapt"},
    "adapt.new_token_penalty": {
        f"adapt/{name}" for name, system in SYSTEMS.items() if not system.trains
    },
    "adapt.rates": {"adapt/bl_base"},
    "adapt.strength": {"evaluate/full", "evaluate/lora"},
    **{f"optimizer.{key}": ON_TEXT | {"finetune"} for key in AdamWConfig.model_fields},
    "finetune.epochs finetune.batch_size finetune.lr": {"finetune"},
    "finetune.tasks finetune.max_length": {"finetune", "evaluate"},
    "finetune.seeds": set(),
    "engine.precision": ON_TEXT | {"finetune", "evaluate"},
    "engine.deepspeed": ON_TEXT | {"finetune"},
    "engine.zero_stage engine.micro_batch_size engine.deterministic engine.recompute_layers": set(),
    "engine.tensor_parallel checkpoint.every checkpoint.keep_last": set(),
}
OUTDATED = {key: steps for keys, steps in TABLE.items() for key in keys.split()}
NAMES = {
    "workdir",
    "systems",
    "languages.source",
    "languages.targets",
    "base",
    "pooling",
    "model.head",
}  # that say which jobs there are


def keys_of(section, prefix=""):
    """Dotted keys of a section and those in it."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section) and f"{prefix}{name}" != "engine.deepspeed":
            yield from keys_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def with_another(recipe, key, files):
    """The recipe with another value of a key, whether or not it fits the rest."""
    *parents, name = key.split(".")
    section = recipe if not parents else getattr(recipe, parents[0])
    value = getattr(section, name)
    special = {
        "tokenizer.vocabulary": "extend",
        "tokenizer.kind": "byte-bpe",
        "data.text": {language: [files["other"]] for language in recipe.languages.all},
        "data.column": "other",
        "data.chats": {"xx": recipe.data.text["xx"]},
        "data.pairs": {"xx": [files["other"]]},
        "data.test_pairs": {"xx": [files["other"]]},
        "data.pair_columns": ["en", "other"],
        "data.min_words": {"en": 2, "xx": 2},
        "data.blocks": "none",
        "data.workers": 7,
        "model.kind": "modernbert",
        "model.hidden_size": 64,
        "model.num_heads": 4,
        "model.norm_eps": 1e-6,
        "build_mini.initialisation": "last",
        "adapt.schedule": "wsd",
        "adapt.initialisation": "random",
        "adapt.replay_from": "text",
        "adapt.rates": {"bl_base": 0.5},
        "adapt.snapshot_at": [3],
        "engine.precision": "bf16",
        "optimizer.betas": (0.9, 0.999),
        "engine.deepspeed": recipe.engine.deepspeed.model_copy(
            update={"settings": {"fp16": {"loss_scale": 9}}}
        ),
        "finetune.tasks": {
            name: task.model_copy(
                update={"train": files["other"], "test": dict.fromkeys(task.test, files["other"])}
            )
            for name, task in recipe.finetune.tasks.items()
        },
    }
    if key in special:
        value = special[key]
    else:
        value = (
            not value
            if isinstance(value, bool)
            else (value or 0) + (1 if isinstance(value, int | None) else 0.01)
        )
    changed = section.model_copy(update={name: value})
    return changed if not parents else recipe.model_copy(update={parents[0]: changed})


def records(recipe):
    """{(step, folder): inputs} of all jobs."""
    return {
        (step.name, str(job.folder.relative_to(recipe.workdir))): as_json(job.inputs, {})[0]
        for step in STEPS.values()
        for job in step.jobs(recipe)
        if job.has_record
    }


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """(recipe of all systems, the same over what stands for a base, files)."""
    folder = tmp_path_factory.mktemp("planned")
    recipe = load_recipe(make_world(folder))
    (other := folder / "other.txt").write_text("some other text\n")
    recipe = recipe.model_copy(update={"systems": [*recipe.systems, "full", "lora"]})
    write_json(folder / "base/config.json", {})
    (folder / "base/model.safetensors").write_bytes(b"")
    replaying = recipe.adapt.model_copy(update={"replay": 0.1, "replay_from": "base"})
    able = [name for name, system in SYSTEMS.items() if system.starts_from_base]
    (pairs := folder / "pairs.tsv").write_text("en\txx\none\tsome\n")
    data = recipe.data.model_copy(
        update={"chats": {"xx": [str(other)]}, "pairs": {"xx": [str(pairs)]}}
    )
    over_base = {"base": str(folder / "base"), "adapt": replaying, "systems": able, "data": data}
    return recipe, recipe.model_copy(update=over_base), {"other": str(other)}


def test_the_table_has_every_key(planned):
    assert {*keys_of(planned[0])} - NAMES == OUTDATED.keys()


@pytest.mark.parametrize("key", OUTDATED)
def test_a_key_outdates_the_jobs_that_read_it_and_no_other(planned, key):
    recipe, over_base, files = planned
    recipe = (
        over_base
        if key in ("adapt.replay_from", "adapt.replay_kl", "adapt.chat_share", "data.chats")
        or "pair" in key
        else recipe
    )
    before = records(recipe)
    after = records(with_another(recipe, key, files))
    made = {place for place in before.keys() & after.keys() if before[place] != after[place]}
    expected = {
        place
        for place in before.keys() & after.keys()
        if place[0] in OUTDATED[key]
        or "/".join((place[0], place[1].split("/")[1])) in OUTDATED[key]
    }
    assert made == expected


def test_what_scores_alone_read_and_a_share_of_no_chats_outdate_no_training(planned):
    recipe, _, files = planned
    qa = recipe.finetune.tasks["qa"].model_copy(update={"metric": "mlqa", "answer_length": 9})
    finetune = recipe.finetune.model_copy(update={"tasks": {"qa": qa}})
    other = with_another(recipe, "adapt.chat_share", files).model_copy(
        update={"finetune": finetune}
    )
    before = records(recipe)
    after = records(other)
    assert {place[0] for place in after if before[place] != after[place]} == {"evaluate"}
