"""Devices to plan for, and one formula for the memory that a training step takes on each.

The formula adds what a rank holds between steps (weights, gradients, optimizer state, as
training/partition.py divides them) and what one micro-batch keeps for its backward pass. It is
within 20 % of the peaks that were measured (tests/pipeline/test_peak.py), which is enough to choose
a micro-batch: where memory ends all the same, training goes on with half of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ds_minimodel.common.errors import UserError

if TYPE_CHECKING:
    from ds_minimodel.models.kind import BodyConfig
    from ds_minimodel.training.partition import Partition, Setup


class Device(NamedTuple):
    """A device to plan for.

    Attributes:
        name: What it is called.
        type: "cpu" or "cuda".
        memory: Bytes for training; of CPUs the machine's, which its ranks share.
        precisions: What a GPU has; `auto` means the first.
    """

    name: str
    type: str
    memory: int
    precisions: tuple[str, ...] = ()

    def memory_of_rank(self, ranks: int) -> int:
        """Return the bytes that one of so many ranks has."""
        return self.memory // ranks if self.type == "cpu" else self.memory

    def resolve(self, precision: str) -> str:
        """Return the precision that a recipe's setting means on this device.

        Raises:
            UserError: The device does not have it.
        """
        if self.type == "cpu":
            import torch

            from ds_minimodel.ops.precision import resolve_precision

            return resolve_precision(precision, torch.device("cpu"))
        if precision == "auto":
            return self.precisions[0]
        if precision not in self.precisions:
            names = ", ".join(self.precisions)
            raise UserError(f"engine.precision {precision}: {self.name} has only {names}")
        return precision


_VOLTA = ("fp16", "fp32")
_AMPERE = ("bf16", "fp16", "fp32")
# A data sheet's GB are 10^9 bytes here, so that the CUDA context finds room, too.
GPUS = {
    "v100-16g": Device("v100-16g", "cuda", 16 * 10**9, _VOLTA),
    "v100-32g": Device("v100-32g", "cuda", 32 * 10**9, _VOLTA),
    "a100-80g": Device("a100-80g", "cuda", 80 * 10**9, _AMPERE),
    "h100-80g": Device("h100-80g", "cuda", 80 * 10**9, _AMPERE),
    "h200-141g": Device("h200-141g", "cuda", 141 * 10**9, _AMPERE),
}
NAMES = (*GPUS, "cpu")


def device_named(name: str) -> Device:
    """Return the device of that name; "cpu" is this machine's CPUs.

    Raises:
        UserError: Nothing is called so.
    """
    if name == "cpu":
        # With torch, which the command line does without.
        from ds_minimodel.training.partition import machine_memory

        return Device(name=name, type=name, memory=machine_memory())
    if name not in GPUS:
        raise UserError(f"--device {name}: unknown; there are {', '.join(NAMES)}")
    return GPUS[name]


def device_here() -> Device:
    """Return this machine's GPU, or its CPUs."""
    import torch

    from ds_minimodel.ops.gpu import device
    from ds_minimodel.ops.precision import resolve_precision

    gpu = device()
    if gpu.type == "cpu":
        return device_named("cpu")
    precisions = dict.fromkeys((resolve_precision("auto", gpu), "bf16", "fp16", "fp32"))
    return Device(
        name=torch.cuda.get_device_name(gpu),
        type="cuda",
        memory=torch.cuda.get_device_properties(gpu).total_memory,
        precisions=tuple(precisions),
    )


class Load(NamedTuple):
    """What a step computes for one micro-batch, as far as memory depends on it.

    Attributes:
        config: The body that is passed through.
        tokens: Tokens of a sequence; a micro-batch has so many in each.
        vocab_size: Rows of the output projection.
        share_read: Share of the positions at which logits are computed, for all heads together.
        trains_body: Whether weights of the layers train, or a LoRA beside them.
        recomputes: Whether layers are computed again in the backward pass.
    """

    config: BodyConfig
    tokens: int
    vocab_size: int
    share_read: float
    trains_body: bool
    recomputes: bool


class Memory(NamedTuple):
    """Bytes on one device in a step.

    Attributes:
        weights: Of the parameters.
        gradients: Of those that train.
        optimizer: Of the optimizer's state.
        activations: That a micro-batch keeps for its backward pass.
        total: At the step's fullest moment.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    total: int


PROCESS = 300 * 10**6  # bytes that a rank's process takes beyond loading torch and DeepSpeed


def memory_of_step(partition: Partition, load: Load, device: Device) -> Memory:
    """Return the memory that a step takes with this partition of its parameters.

    Args:
        partition: Which parameters each rank holds, whole or in part; its setup has the sizes.
        load: What a micro-batch computes.
        device: Where.
    """
    setup = partition.setup
    weights, gradients, optimizer = held_between_steps(partition)
    activations = activations_of(load, setup, device)
    trained = setup.share(sum(partition.trained))
    # Adam is given fp32 copies of 16-bit gradients, and a bucket of them crosses the network.
    update = 0 if setup.precision == "fp32" and setup.zero_stage == 0 else 4 * trained
    total = weights + gradients + optimizer + max(activations, update)
    if setup.zero_stage == 3:
        # The layers at work are gathered: the largest tensor, beside the copy it arrives in.
        total += 2 * setup.width * max(partition.partitioned, default=0)
    if device.type == "cpu":
        total += PROCESS
    return Memory(weights, gradients, optimizer, activations, total)


def held_between_steps(partition: Partition) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer state on one device between steps.

    Optimizer state is an fp32 copy and Adam's two moments, 12 bytes of what trains, from stage 1
    on divided among ranks; at stage 0 in fp32 the copy is the weight. Offloaded, it and the
    gradients lie in the host's memory and count on CPUs alone, whose memory that is.
    """
    setup = partition.setup
    trained = sum(partition.trained)
    share = sum(setup.share(count) for count in partition.trained)
    everything = sum(parameter.numel for parameter in partition.parameters)
    whole = everything - sum(partition.partitioned)
    weights = setup.width * (whole + sum(setup.share(count) for count in partition.partitioned))
    if setup.offloads_optimizer:
        return weights, 0, 0
    sums = 4 if setup.accumulates_in_fp32 else 0
    if setup.zero_stage >= 2:
        gradients = (sums or setup.width) * share
    else:
        gradients = (setup.width + sums) * trained
    if setup.zero_stage:
        return weights, gradients, 12 * share
    return weights, gradients, (8 if setup.precision == "fp32" else 12) * trained


def activations_of(load: Load, setup: Setup, device: Device) -> int:
    """Return the bytes that one micro-batch keeps for its backward pass.

    Per token a layer keeps its queries, keys and values, the sums of values, what its activation
    function takes and the inputs of its norms; where its weights train, the inputs of their
    products, too. Attention stores nothing of size queries x keys, but on GPUs with dropout.
    """
    config = load.config
    hidden = config.hidden_size
    queries = config.num_heads * config.head_width
    keys = config.num_key_heads * config.head_width
    # Tensor parallelism divides heads and feed-forward blocks; each rank has every input of a norm.
    divided = 2 * queries + 2 * keys + (2 if config.gated else 1) * config.ffn_size
    whole = hidden
    if config.norms_heads:
        divided += queries + keys
    if load.trains_body:
        divided += 0 if config.gated else config.ffn_size
        whole += 2 * hidden
    if device.type == "cuda" and config.attention_dropout:
        divided += config.num_heads * load.tokens
    layer = divided / setup.tensor_parallel + whole
    layers = config.num_layers
    # The layer at work has gradients, too, of as many numbers.
    kept = layers * hidden + 2 * layer if load.recomputes else (layers + 0.5) * layer
    logits = load.share_read * load.vocab_size / setup.tensor_parallel
    positions = setup.split.micro * load.tokens
    return int(setup.width * positions * (kept + logits + 3 * hidden))
