"""Mini-models: the bottom layers of a body with its head, and new layers between them.

Plain functions on names and tensors, applied to artifacts before a module is built.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ds_minimodel.artifacts.models import BodyArtifact
from ds_minimodel.hf.lazy import LazyTensors, lazily
from ds_minimodel.models.body import Body


def tensors_of(body: BodyArtifact, module: Body) -> LazyTensors:
    """The tensors of `body` that a task's body has, which may be of fewer layers.

    Its head, where it has one, is the body's at that depth, or the deepest where there is none.
    """
    layers = module.config.num_layers
    depth = layers if layers in body.head_depths else max(body.head_depths, default=0)
    own = lazily(body.tensors)
    names = {
        name: name.replace(f"heads.{layers}.", f"heads.{depth}.", 1) for name in module.state_dict()
    }
    return LazyTensors({name: own[theirs] for name, theirs in names.items()})


def prefix(body: BodyArtifact, depth: int) -> BodyArtifact:
    """The bottom `depth` layers of `body` with the head that reads there, as a body of its own."""
    keep = {name: lazy for name, lazy in lazily(body.tensors).items() if _belongs(name, depth)}
    return replace(
        body, config=body.config.with_layers(depth), head_depths=(depth,), tensors=LazyTensors(keep)
    )


def with_new_layers(
    body: BodyArtifact, depth: int, new_layers: int, seed: int, copies_last: bool = False
) -> BodyArtifact:
    """The mini-model of step 1b: the bottom `depth` layers, `new_layers` on top, and the body's
    last head.

    The new layers are random, a function of `seed`, or start as copies of the body's last ones.
    Returns a body of depth + new_layers layers.
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
            above = (body.config.num_layers - total) // config.period * config.period
            source = name.replace(str(index), str(above + index), 1)
            tensors[name] = body.tensors.get(
                source, tensors[name]
            )  # ModernBERT's first layer has a norm less
    return replace(body, config=config, head_depths=(total,), tensors=tensors)


def is_layer_from(name: str, first: int) -> bool:
    """Whether parameter `name` of a body belongs to a layer with index >= `first`."""
    part = name.split(".")
    return part[0] == "layers" and int(part[1]) >= first


def _belongs(name: str, depth: int) -> bool:
    part = name.split(".")
    return part[1] == str(depth) if part[0] == "heads" else not is_layer_from(name, depth)
