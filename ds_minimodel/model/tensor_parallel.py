"""Splitting of a model over the ranks of a tensor-parallel group.

Split: attention by heads, feed-forward by inner units, a masked-LM head's dense layer by outputs, the
vocabulary by rows. Whole on every rank, with the same values and gradients: norms, positions, biases that are
added after a sum over ranks, and the heads of tasks, which read one vector a sample or have two outputs.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from ds_minimodel.model.transformer import LanguagePack, Layer, MaskedLmHead
from ds_minimodel.parallel import Group, shard_parameter


def shard(module: nn.Module, group: Group) -> None:
    """Cut `module`, in place, to the part that this rank of `group` computes; set weights and requires_grad before.

    The numbers of heads and of inner units must be divisible by the size of the group; the size of the
    vocabulary need not be.
    """
    if group.size == 1:
        return
    for part in module.modules():
        if type(part) in _SPLIT:
            _SPLIT[type(part)](part, group)
            part.group = group  # type: ignore[assignment]


def _split_layer(layer: Layer, group: Group) -> None:
    assert layer.num_heads % group.size == layer.ffn_out.in_features % group.size == 0
    heads = group.share(layer.num_heads)
    layer.num_heads = len(heads)
    layer.sites = layer.sites._replace(heads=layer.sites.heads[heads.start : heads.stop])
    for name in ("weight", "bias"):
        shard_parameter(layer.qkv, name, group, dim=0, sections=3)
        shard_parameter(layer.ffn_in, name, group, dim=0)
    shard_parameter(layer.attention_out, "weight", group, dim=1)
    shard_parameter(layer.ffn_out, "weight", group, dim=1)


def _split_head(head: MaskedLmHead, group: Group) -> None:
    for name in ("weight", "bias"):
        shard_parameter(head.dense, name, group, dim=0)


def _split_pack(pack: LanguagePack, group: Group) -> None:
    pack.rows = group.share(len(pack.bias))
    for name in ("tokens", "bias"):
        shard_parameter(pack, name, group, dim=0)


_SPLIT: dict[type, Callable[[Any, Group], None]] = {
    Layer: _split_layer,
    MaskedLmHead: _split_head,
    LanguagePack: _split_pack,
}
