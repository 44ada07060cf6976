"""The partition of a run: which weights each rank holds whole or shares, and DeepSpeed's buckets.

Below ZeRO 3 every rank holds all weights. At ZeRO 3 what trains is partitioned; frozen parameters
stay whole on each rank, in the module's order, as long as a rank's weights, gradients and optimizer
state leave half of its memory to activations; the others are partitioned, too. Results do not
depend on it.

Symbols: W replicas, b bytes of a parameter (4 in fp32, else 2). Partitions are padded to equal
lengths, which is counted. tests/training/test_costs.py holds the bytes against DeepSpeed.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.training.run import Split, replicas_of, split_batch
from ds_minimodel.training.zero import config

if TYPE_CHECKING:
    from ds_minimodel.training.run import Run
    from ds_minimodel.training.world import World

_NO_FILE = config.ZeroMemory()


class Setup(NamedTuple):
    """The sizes of a run and of its ranks that memory and traffic depend on.

    Attributes:
        zero_stage: 0 to 3.
        precision: "fp32", "bf16" or "fp16".
        batch_size: samples of a step, over all ranks.
        micro_batch_size: largest number of samples of a rank in one forward pass.
        ranks: number of them in all.
        device_memory: bytes that one rank has.
        tensor_parallel: ranks that hold one replica.
        zero: what of the recipe's DeepSpeed JSON memory depends on.
    """

    zero_stage: int
    precision: str
    batch_size: int
    micro_batch_size: int
    ranks: int
    device_memory: int
    tensor_parallel: int = 1
    zero: config.ZeroMemory = _NO_FILE

    @property
    def replicas(self) -> int:
        """W: ranks, or groups of them, among which samples are divided."""
        return replicas_of(self.ranks, self.tensor_parallel)

    @property
    def split(self) -> Split:
        """Samples of a micro-batch, and micro-batches a step."""
        return split_batch(self.batch_size, self.micro_batch_size, self.replicas)

    @property
    def width(self) -> int:
        """b: bytes of an element of a parameter, and of its gradient as it is computed."""
        return DTYPES[self.precision].itemsize

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer state and gradients lie in the host's memory."""
        return self.zero.offloads_optimizer and self.zero_stage in config.OFFLOAD_STAGES

    @property
    def accumulates_in_fp32(self) -> bool:
        """Whether the gradients of micro-batches are added up in fp32."""
        return config.accumulates_in_fp32(self.precision, self.zero_stage, self.split.accumulation)

    def share(self, numel: int) -> int:
        """Return the elements of one rank's partition of `numel`."""
        return -(-numel // self.replicas)


class ParameterInfo(NamedTuple):
    """A parameter of a module.

    Attributes:
        name: of the parameter.
        numel: number of its elements.
        trains: whether it does.
    """

    name: str
    numel: int
    trains: bool


@dataclass(frozen=True)
class Partition:
    """Where the parameters of a module lie in a run.

    Attributes:
        setup: sizes of the run and its ranks.
        parameters: of the module, in its order.
        whole: names of frozen parameters that each rank holds whole at ZeRO 3.
        splits_linear: whether the weight of a linear layer is partitioned.
    """

    setup: Setup
    parameters: tuple[ParameterInfo, ...]
    whole: frozenset[str] = frozenset()
    splits_linear: bool = False

    @property
    def trained(self) -> list[int]:
        """Elements of each parameter that trains."""
        return [parameter.numel for parameter in self.parameters if parameter.trains]

    @property
    def partitioned(self) -> list[int]:
        """Elements of each parameter of which a rank holds a part between steps."""
        return [parameter.numel for parameter in self.parameters if not self.is_whole(parameter)]

    @property
    def bucket(self) -> int:
        """Elements of the buffer that gradients are reduced through.

        They are as many as the recipe's file says, or all that train, up to BUCKET. The largest
        parameter fits: DeepSpeed would allocate another buffer for one that does not.
        """
        if self.setup.zero.bucket is not None:
            return self.setup.zero.bucket
        elements = max(max(self.trained), min(config.BUCKET, sum(self.trained)))
        return elements + elements % 2

    @property
    def zero(self) -> dict[str, int | bool]:
        """DeepSpeed's settings under "zero_optimization" that make this what runs."""
        return config.zero_settings(
            self.setup.zero_stage, self.bucket, partitions_linear=self.splits_linear
        )

    def is_whole(self, parameter: ParameterInfo) -> bool:
        """Return whether each rank holds all of a parameter between steps."""
        return self.setup.zero_stage < 3 or parameter.name in self.whole

    def record(self) -> dict[str, Any]:
        """Return the partition as JSON.

        At ZeRO 3 the first `frozen_whole` of the `frozen` parameters are whole.
        """
        frozen = [parameter for parameter in self.parameters if not parameter.trains]
        return {
            "frozen": len(frozen),
            "frozen_whole": sum(map(self.is_whole, frozen)),
            "zero_optimization": self.zero,
        }


def partition_of(module: torch.nn.Module, setup: Setup) -> Partition:
    """Find the partition of a module, with `requires_grad` as it trains, by the rule above."""
    parameters = tuple(
        ParameterInfo(name, parameter.numel(), parameter.requires_grad)
        for name, parameter in module.named_parameters()
    )
    partition = Partition(setup, parameters)
    if setup.zero_stage < 3:
        return partition
    # Bytes of an element that trains, beside its weight: fp32 master and both moments, gradient.
    state = 0
    if not setup.offloads_optimizer:
        state = 12 + (4 if setup.accumulates_in_fp32 else setup.width)
    # Bytes of this rank: first all is partitioned, then frozen parameters become whole.
    held = 0
    for parameter in parameters:
        width = setup.width + state if parameter.trains else setup.width
        held += setup.share(parameter.numel) * width
    whole = set()
    for parameter in parameters:
        if not parameter.trains:
            held += setup.width * (parameter.numel - setup.share(parameter.numel))
            if held > setup.device_memory // 2:
                break
            whole.add(parameter.name)
    linear = {
        f"{name}.weight"
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    return replace(partition, whole=frozenset(whole), splits_linear=not linear <= whole)


def partition_of_run(module: torch.nn.Module, run: Run, world: World) -> Partition:
    """Find the partition of a run, the same on every rank.

    Where tensor parallelism splits the module, it is that of the largest parts.
    """
    ranks_of_hosts = Counter(world.all_gather_object(socket.gethostname)).values()

    def find() -> Partition:
        memory = memory_of(world.device, max(ranks_of_hosts))
        zero = config.zero_memory(run.deepspeed)
        setup = Setup(
            **asdict(run.execution),
            ranks=world.size,
            device_memory=memory,
            tensor_parallel=world.tensor.size,
            zero=zero,
        )
        return partition_of(module, setup)

    # The last rank's share is never less than another's (Group.shares).
    return world.all_gather_object(find)[-1]


def memory_of(device: torch.device, ranks_per_node: int) -> int:
    """Return the bytes that one rank has on `device`, where so many ranks share the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return machine_memory() // ranks_per_node


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
