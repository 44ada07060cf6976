"""How a model is split over the ranks of a tensor-parallel group.

Split: attention by heads, feed-forward by inner units, a masked-LM head's dense layer by outputs, the
vocabulary by rows. Whole on every rank, with the same values and gradients: norms, positions, biases that are
added after a sum over ranks, and the heads of tasks, which read one vector a sample or have two outputs.
"""

from ds_minimodel.model.transformer import LanguagePack, Layer, MaskedLmHead
from ds_minimodel.parallel import shard_parameter


def shard(module, group):
    """Keep of `module`, in place, what this rank of `group` computes; weights and what trains are set before.

    The numbers of heads and of inner units must be divisible by the size of the group; the size of the
    vocabulary need not be.
    """
    if group.size == 1:
        return
    for part in module.modules():
        if type(part) in _SPLIT:
            _SPLIT[type(part)](part, group)
            part.group = group


def _split_layer(layer, group):
    assert layer.num_heads % group.size == layer.ffn_out.in_features % group.size == 0
    heads = group.share(layer.num_heads)
    layer.num_heads, layer.head_sites = len(heads), layer.head_sites[heads.start : heads.stop]
    for name in ("weight", "bias"):
        shard_parameter(layer.qkv, name, group, dim=0, sections=3)
        shard_parameter(layer.ffn_in, name, group, dim=0)
    shard_parameter(layer.attention_out, "weight", group, dim=1)
    shard_parameter(layer.ffn_out, "weight", group, dim=1)


def _split_head(head, group):
    for name in ("weight", "bias"):
        shard_parameter(head.dense, name, group, dim=0)


def _split_pack(pack, group):
    pack.rows = group.share(len(pack.bias))
    for name in ("tokens", "bias"):
        shard_parameter(pack, name, group, dim=0)


_SPLIT = {Layer: _split_layer, MaskedLmHead: _split_head, LanguagePack: _split_pack}
