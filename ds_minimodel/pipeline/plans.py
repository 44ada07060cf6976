"""What each masked-LM step of a recipe takes on a given number of ranks; nothing is started.

Finetuning takes less than the pretraining of the same body at the same micro-batch.
"""

from dataclasses import asdict

import torch

from ds_minimodel.engine.planning import devices
from ds_minimodel.engine.planning.memory import Sizes
from ds_minimodel.engine.planning.planner import Planner, ranks_for_copy
from ds_minimodel.engine.run import replicas_of
from ds_minimodel.model.artifacts import BodyArtifact
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.mini import is_layer_from, with_new_layers
from ds_minimodel.model.parameters import train_only
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.model.transformer import Body
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.parallel import Group
from ds_minimodel.recipe.base import source_vocab_size
from ds_minimodel.results.tables import Cell, Table
from ds_minimodel.results.units import SYSTEM_NAMES
from ds_minimodel.steps import adapt
from ds_minimodel.systems import BODY_OF, body_config

KINDS_OF_BYTES = ("weights", "gradients", "optimizer", "activations", "buffers", "total")


def plans(recipe, world_size, device_name, ranks_per_node=None):
    """Rows as JSON, one for each step of each system of the recipe.

    ranks_per_node: all ranks, up to 8, where not given. UserError for an unknown device and for ranks that do
    not divide a batch, or that engine.tensor_parallel does not divide.
    """
    ranks_per_node = ranks_per_node or min(8, world_size)
    device = devices.named(device_name, ranks_per_node)
    engine = recipe.engine
    precision = (
        resolve_precision(engine.precision, torch.device("cpu"))
        if device_name == "cpu"
        else device.precision
        if engine.precision == "auto"
        else engine.precision
    )
    planners, rows = {}, []
    for system, step, key, section, make in _steps(recipe):
        if key not in planners:
            planners[key] = _planner(make, engine.tensor_parallel, precision, device.type)
        sizes = Sizes(
            engine.zero_stage,
            precision,
            section.batch_size,
            engine.micro_batch_size,
            replicas_of(world_size, engine.tensor_parallel),
            ranks_for_copy(ranks_per_node, engine.tensor_parallel),
            device.memory,
        )
        plan = planners[key].plan(sizes)
        rows.append(
            {
                "system": system,
                "step": step,
                "device": device.name,
                **sizes._asdict(),
                "world_size": world_size,
                "ranks_per_node": ranks_per_node,
                "tensor_parallel": engine.tensor_parallel,
                "micro_batch_size": sizes.micro,
                **plan.summary(),
                "smallest_zero_stage": planners[key].smallest_stage(sizes),
                "largest_micro_batch": planners[key].largest_micro_batch(sizes),
                "parts": [asdict(part) for part in plan.parts],
            }
        )
    return rows


def _planner(make, tensor_parallel, precision, device):
    """For the rank of a replica that holds the largest parts: the last."""
    with torch.device("meta"):
        module, batches_of = make()
        shard(module, Group(tensor_parallel - 1, tensor_parallel))
        return Planner(module, batches_of, precision, device)


def _steps(recipe):
    """(system, step, key, section, function that gives module and batches); those with the same key have the same
    plan."""
    for system in recipe.systems:
        body = BODY_OF[system]
        if recipe.base is None:
            yield system, "pretrain", (body, "pretrain"), recipe.pretrain, lambda: _pretrain(recipe, body)
        if system == "minipost":
            yield system, "build-mini", "build-mini", recipe.build_mini, lambda: _build_mini(recipe)
        yield (system, "adapt", (_frozen_config(recipe, system), "adapt"), recipe.adapt, lambda: _adapt(recipe, system))


def _masked_lm(recipe, config, vocab_size, section, trains, deepest=None):
    module = MaskedLanguageModel(config, vocab_size)
    train_only(module, trains)

    def batches_of(micro):
        read = micro, int(section.mask_prob * section.seq_length) + 1  # the most that a row may have masked
        batch = {
            "tokens": _integers((micro, section.seq_length)),
            "sample_keys": _integers((micro,), torch.int32),
            "read": _integers(read),
            "targets": _integers(read),
        }
        if recipe.data.blocks != "complete":
            batch["lengths"] = _integers((micro,), torch.int32)
        return [batch | ({"depth": deepest} if deepest else {})]

    return module, batches_of


def _integers(shape, dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype, device="meta")


def _pretrain(recipe, body):
    return _masked_lm(recipe, body_config(recipe, body), source_vocab_size(recipe), recipe.pretrain, lambda name: True)


def _body(recipe, body):
    """A body as an artifact without memory."""
    config = body_config(recipe, body)
    with torch.device("meta"):
        return BodyArtifact(config, Body(config).state_dict(), space="")


def _build_mini(recipe):
    depth = recipe.mini.depth
    mini = with_new_layers(_body(recipe, "bl_base"), depth, recipe.mini.new_layers, recipe.seed)
    return _masked_lm(
        recipe,
        mini.config,
        source_vocab_size(recipe),
        recipe.build_mini,
        lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth),
    )


def _frozen_config(recipe, system):
    body = _body(recipe, BODY_OF[system])
    if system == "minipost":
        return with_new_layers(body, recipe.mini.depth, recipe.mini.new_layers, recipe.seed).config
    return adapt.frozen_model(recipe, body, system).config


def _adapt(recipe, system):
    deepest = None
    if system == "multijoint" and recipe.adapt.depth_schedule:
        deepest = recipe.adapt.depth_schedule[-1][0]
    return _masked_lm(
        recipe,
        _frozen_config(recipe, system),
        recipe.tokenizer.vocab_size,
        recipe.adapt,
        lambda name: adapt.trains_in_adapt(name, recipe.adapt),
        deepest,
    )


# --- As a page ---


def tables(rows):
    """Tables of the rows: one of the steps, one of the modules of each."""
    first = rows[0]
    notes = [
        f"{first['world_size']} ranks, {first['ranks_per_node']} a node, on {first['device']} with "
        f"{_size(first['device_memory'])} for each; ZeRO {first['zero_stage']}, {first['precision']}. Bytes on one "
        "device at the fullest moment of a step, and sent by each rank in one step. Predicted, not measured."
    ]
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks hold one replica between them; the activations that they "
            "exchange are not in what is sent."
        )
    steps = [
        [
            *_name(row),
            Cell(str(row["micro_batch_size"])),
            *(Cell(_size(row["memory"][kind])) for kind in KINDS_OF_BYTES),
            Cell(_size(row["wire"]["total"])),
            Cell("yes" if row["fits"] else "NO"),
            Cell(_or_none(row["smallest_zero_stage"])),
            Cell(_or_none(row["largest_micro_batch"])),
        ]
        for row in rows
    ]
    parts = [
        [
            *_name(row),
            Cell(part["name"]),
            Cell(part["kind"]),
            Cell(part["placement"]),
            Cell(f"{part['parameters'] / 1e6:.2f}"),
            *(Cell(_size(part[kind])) for kind in KINDS_OF_BYTES[:3]),
        ]
        for row in rows
        for part in _runs(row["parts"])
    ]
    return [
        Table(
            "Steps",
            [
                "System",
                "Step",
                "micro-batch",
                *KINDS_OF_BYTES,
                "sent a step",
                "fits",
                "smallest ZeRO",
                "largest micro-batch",
            ],
            steps,
            notes=notes,
        ),
        Table("Modules", ["System", "Step", "module", "kind", "lives", "parameters, M", *KINDS_OF_BYTES[:3]], parts),
    ]


def _name(row):
    return Cell(SYSTEM_NAMES[row["system"]]), Cell(row["step"])


def _or_none(value):
    return "none" if value is None else str(value)


def _runs(parts):
    """Parts with neighbours of the same list joined where they are alike: layers.0 … layers.3 as layers.0-3."""
    joined = []
    for part in parts:
        head, _, number = part["name"].rpartition(".")
        last = joined[-1] if joined else None
        if last and number.isdigit() and (head, part["kind"], part["placement"]) == last["run"]:
            last["name"] = f"{head}.{last['first']}-{number}"
            for key in ("parameters", *KINDS_OF_BYTES[:3]):
                last[key] += part[key]
        else:
            joined.append({**part, "run": (head, part["kind"], part["placement"]), "first": number})
    return joined


def _size(count):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"
