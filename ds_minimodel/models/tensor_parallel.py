"""Cut a built model to the part that one rank of a tensor-parallel group computes.

The modules say in `cuts` which of them is cut in which way (models/body.py). A way cuts the
parameters of a module and puts before its class one of those below, which exchanges what goes in or
comes out; names of parameters stay. The scheme is Megatron-LM's (Shoeybi et al. 2019, section 3):
the first linear layer of a branch is cut by outputs, the second by inputs, so that each branch
exchanges activations once forward and once backward.

Shapes: H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from ds_minimodel import ops
from ds_minimodel.models.body import LanguagePack, Linear, Projection, Table
from ds_minimodel.ops.parallel.cross_entropy import linear_cross_entropy, local_index, losses
from ds_minimodel.ops.parallel.group import Group
from ds_minimodel.ops.parallel.mappings import copy, gather, reduce
from ds_minimodel.ops.parallel.shard import shard_parameter


def split_model(model: nn.Module, group: Group) -> None:
    """Cut `model`, in place, to the part that this rank of `group` computes.

    Whole on every rank, with the same values and gradients, stays what no `cuts` names: norms,
    positions, biases that are added after a sum over ranks, and the heads of tasks, which read one
    vector a sample or have few outputs.

    Args:
        model: with weights and requires_grad set. The sizes that BodyConfig.split_sizes names must
            be divisible by the group's; the vocabulary need not be.
        group: of ranks.
    """
    if group.size == 1:
        return
    for module in model.modules():
        for name, way in getattr(module, "cuts", {}).items():
            part = getattr(module, name) if name else module
            if part is not None:
                _WAYS[way](part, group)


class _Part(nn.Module):
    group: Group


class _Column(_Part):
    """A linear layer of which each rank has some outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(copy(x, self.group))


class _Gathered(_Column):
    """The same, whose outputs every rank gets."""

    def forward(self, x: Tensor) -> Tensor:
        return gather(super().forward(x), self.group)


class _Heads(_Part):
    """A projection of which each rank has some heads."""

    def forward(self, x_BSH: Tensor, x_BQH: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        copied_BSH = copy(x_BSH, self.group)
        if x_BQH is not None:
            x_BQH = copied_BSH if x_BQH is x_BSH else copy(x_BQH, self.group)
        return super().forward(copied_BSH, x_BQH)


class _Row(_Part):
    """A linear layer of which each rank has some inputs.

    The bias is whole, and added once, to the sum.
    """

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        summed = reduce(ops.linear(x, self.weight), self.group)
        return summed if self.bias is None else summed + self.bias


class _Shared(_Part):
    """A norm of each head; the gradient of its weight is the sum of those of all ranks' heads."""

    @property
    def weight(self) -> Tensor:
        weight = self._parameters["weight"]
        assert weight is not None
        return copy(weight, self.group)


class _Vocabulary(LanguagePack):
    """A language of which each rank has the entries in the ranges `rows`, one below the other."""

    group: Group
    rows: tuple[range, ...]

    def embed(self, tokens_BS: Tensor) -> tuple[Tensor, Table]:
        is_here, index = local_index(tokens_BS, self.rows)
        embedded_BSH, table = super().embed(index)
        return reduce(embedded_BSH.masked_fill(~is_here[..., None], 0), self.group), table

    def cross_entropy(self, x_PH: Tensor, table: Table, targets_P: Tensor) -> Tensor:
        return linear_cross_entropy(
            x_PH,
            table.rows,
            bias=self.whole_bias(),
            targets=targets_P,
            rows=self.rows,
            group=self.group,
            base=table.base,
        )

    def token_losses(self, x_PH: Tensor, table: Table, targets_P: Tensor) -> Tensor:
        of_part = partial(losses, rows=self.rows, group=self.group)
        return ops.token_losses(
            x_PH,
            table.rows,
            bias=self.whole_bias(),
            targets=targets_P,
            base=table.base,
            losses=of_part,
        )

    def log_sums(self, x_PH: Tensor, table: Table) -> Tensor:
        return gather(super().log_sums(x_PH, table)[:, None], self.group).logsumexp(-1)


def _put_before(module: nn.Module, first: type[nn.Module], group: Group) -> None:
    """Put the class `first` before the module's own class in its method resolution order."""
    kind = type(module)
    if not issubclass(first, kind):
        first = type(first.__name__ + kind.__name__, (first, kind), {})
    module.__class__ = first
    module.group = group  # type: ignore[assignment]


def _by_outputs(linear: Linear, group: Group, first: type[nn.Module]) -> None:
    """Give this rank its share of each block's outputs, computed by the class `first`."""
    for name, _ in list(linear.named_parameters()):
        shard_parameter(linear, name, group, dim=0, lengths=linear.blocks)
    linear.blocks = tuple(len(group.share(size)) for size in linear.blocks)
    _put_before(linear, first, group)


def _by_heads(projection: Projection, group: Group) -> None:
    assert projection.num_heads % group.size == projection.num_key_heads % group.size == 0
    heads = group.share(projection.num_heads)
    projection.sites = projection.sites[heads.start : heads.stop]
    _by_outputs(projection, group, _Heads)


def _by_inputs(linear: Linear, group: Group) -> None:
    shard_parameter(linear, "weight", group, dim=1)
    _put_before(linear, _Row, group)


def _by_vocabulary(pack: LanguagePack, group: Group) -> None:
    base = group.share(pack.num_base)
    new = group.share(len(pack.tokens))
    # Ids of the new rows follow those of the whole base.
    new_ids = range(pack.num_base + new.start, pack.num_base + new.stop)
    pack.rows = (base, new_ids) if pack.num_base else (new,)  # type: ignore[assignment]
    for name, _ in list(pack.named_parameters()):
        shard_parameter(pack, name, group, dim=0)
    pack.num_base = len(base) if pack.num_base else 0
    _put_before(pack, _Vocabulary, group)


_WAYS: Mapping[str, Callable[[Any, Group], None]] = {
    "heads": _by_heads,
    "column": lambda linear, group: _by_outputs(linear, group, _Column),
    "gathered": lambda linear, group: _by_outputs(linear, group, _Gathered),
    "row": _by_inputs,
    "shared": lambda norm, group: _put_before(norm, _Shared, group),
    "vocabulary": _by_vocabulary,
}
