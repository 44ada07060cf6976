"""Mini-models: the bottom layers of a body with its head, and new layers between them.

These are plain functions on names and tensors, applied to artifacts before a module is built.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ds_minimodel.artifacts.models import BodyArtifact
from ds_minimodel.hf.lazy import LazyTensors, lazy_entries
from ds_minimodel.models.body import Body


def tensors_of(body: BodyArtifact, module: Body) -> LazyTensors:
    """Return the tensors of a body for the body of a task, which may be of fewer layers.

    Its head, where it has one, is the body's at that depth, or the deepest where there is none.

    Args:
        body: what is finetuned.
        module: the task's body, whose names and layers count.
    """
    layers = module.config.num_layers
    depth = layers if layers in body.head_depths else max(body.head_depths, default=0)
    entries = lazy_entries(body.tensors)
    tensors = {}
    for name in module.state_dict():
        tensors[name] = entries[name.replace(f"heads.{layers}.", f"heads.{depth}.", 1)]
    return LazyTensors(tensors)


def prefix(body: BodyArtifact, depth: int) -> BodyArtifact:
    """Return the bottom `depth` layers of `body`, with the head that reads there, as a body."""
    tensors = {
        name: lazy for name, lazy in lazy_entries(body.tensors).items() if _belongs(name, depth)
    }
    return replace(
        body,
        config=body.config.with_layers(depth),
        head_depths=(depth,),
        tensors=LazyTensors(tensors),
    )


def with_new_layers(
    body: BodyArtifact, depth: int, new_layers: int, seed: int, *, copies_last: bool = False
) -> BodyArtifact:
    """Return the mini-model of step 1b, a body of depth + new_layers layers.

    Args:
        body: what its bottom layers and its head, the last, are taken from.
        depth: number of layers that are taken.
        new_layers: number of layers between them and the head.
        seed: decides random new layers.
        copies_last: whether new layers start as copies of the body's last ones instead.
    """
    head_depth = max(body.head_depths)
    total = depth + new_layers
    config = body.config.with_layers(total)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = config.make_body((total,)).state_dict()
    for name in tensors:
        if name.startswith("heads."):
            tensors[name] = body.tensors[name.replace(f"heads.{total}.", f"heads.{head_depth}.", 1)]
        elif not is_layer_from(name, depth):
            tensors[name] = body.tensors[name]
        elif copies_last:
            index = int(name.split(".")[1])
            # By whole periods, so that a copy keeps its place in the pattern of layers.
            above = (body.config.num_layers - total) // config.period * config.period
            source = name.replace(str(index), str(above + index), 1)
            # ModernBERT's first layer has a norm less than others.
            tensors[name] = body.tensors.get(source, tensors[name])
    return replace(body, config=config, head_depths=(total,), tensors=tensors)


def is_layer_from(name: str, first: int) -> bool:
    """Return whether parameter `name` of a body belongs to a layer with index >= `first`."""
    parts = name.split(".")
    return parts[0] == "layers" and int(parts[1]) >= first


def _belongs(name: str, depth: int) -> bool:
    """Return whether a parameter of a body is one of its prefix of `depth` layers."""
    parts = name.split(".")
    if parts[0] == "heads":
        return parts[1] == str(depth)
    return not is_layer_from(name, depth)
