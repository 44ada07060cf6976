"""FLOPs of every step: by the paper's formulas (appendix A.1), and those that are executed.

Both count the multiplications of matrices only, 2mnp for an m x n by an n x p matrix, as the paper
does: no biases, activation functions, softmax, norms, embedding look-ups or optimizer updates.
Which products a body makes is declared with its kind (models/kind.py).

The paper's formulas assume that every layer runs at every position and that a frozen layer costs
its forward pass twice. What is executed differs from that:
- the last layer computes queries, attention output and feed-forward only at the positions that are
  read;
- the backward pass of the two attention products (QK^T, and the product with V) goes to both
  operands, also where weights are frozen (the "additional backward computation" that the paper's
  footnote 11 leaves out);
- a position that sees a window, or what is before it, is counted with the keys that it sees;
- in step 1b the lowest trainable layer leaves out only the gradient of its input, not its whole
  dL/dx.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ds_minimodel.models import BodyConfig
from ds_minimodel.models.kind import LayerProducts, keys_seen

EFLOP = 1e18
# The paper's estimate of a V100 is 30 TFLOP/s (section 3).
EFLOPS_PER_V100_DAY = 30e12 * 24 * 3600 / EFLOP


@dataclass(frozen=True)
class Workload:
    """What goes through a body: `steps` x `batch_size` sequences of `seq_length` tokens.

    Attributes:
        body: what it goes through.
        vocab_size: ids of the language.
        seq_length: tokens of a sequence.
        share_read: share of the positions that the heads read (Objective.share_read); 0 for none.
        batch_size: sequences of a step.
        steps: how many.
        num_base: ids of the vocabulary whose rows do not train in step 2, as an extended language
            has them of its base.
        predicts_tokens: whether heads and the output projection score tokens; a finished head costs
            next to nothing.
    """

    body: BodyConfig
    vocab_size: int
    seq_length: int
    share_read: float
    batch_size: int = 1
    steps: int = 1
    num_base: int = 0
    predicts_tokens: bool = True

    @property
    def num_sequences(self) -> int:
        """Sequences of all steps."""
        return self.batch_size * self.steps

    @property
    def num_read(self) -> float:
        """Positions that the heads read in one sequence, on average."""
        return self.share_read * self.seq_length

    def layers(self, num_layers: int) -> tuple[LayerProducts, ...]:
        """Return the products of the lowest layers, which may be more than the body has."""
        return self.body.with_layers(num_layers).products.layers


class Cost(NamedTuple):
    """FLOPs by the paper's formula, and FLOPs that are executed."""

    formula: float
    executed: float


# --- Forward pass of one sequence, as the paper counts it ---


def layer_flops(work: Workload, layer: LayerProducts) -> float:
    """Return FLOP_layer of the paper: 24sh^2 + 4hs^2 for RoBERTa's layer where f = 4h."""
    length = work.seq_length
    products = length * (layer.key + layer.query + layer.output)
    return products + _pairs(work, layer, length) * layer.pair


def _pairs(work: Workload, layer: LayerProducts, num_queries: float) -> float:
    """Return the count of pairs of a query and a key that it sees."""
    return num_queries * keys_seen(layer.window, work.seq_length)


def output_flops(work: Workload) -> float:
    """Return FLOPs of the h x V output projection where it is read: the paper's p FLOP_outproj."""
    if not work.predicts_tokens:
        return 0.0
    return 2 * work.num_read * work.body.hidden_size * work.vocab_size


def output_gradient_flops(work: Workload) -> float:
    """Return FLOPs of the gradient of the output projection's rows that train."""
    return output_flops(work) * (1 - work.num_base / work.vocab_size)


def lm_head_flops(work: Workload) -> float:
    """Return FLOP_lm of the paper: a head's products and the output projection where it is read."""
    head = work.body.products.head if work.predicts_tokens else 0.0
    return work.num_read * head + output_flops(work)


# --- The paper's formulas ---


def _all_layers(work: Workload, num_layers: int) -> float:
    return sum(layer_flops(work, layer) for layer in work.layers(num_layers))


def pretrain_flops(work: Workload, num_layers: int, num_heads: int = 1) -> float:
    """Return the cost of step 1, equation A1: both ways through the stack and through each head.

    With two heads this is the paper's cost of MiniJoint (footnote 2): the layers run once for both.
    """
    stack = _all_layers(work, num_layers)
    return 3 * work.num_sequences * (stack + num_heads * lm_head_flops(work))


def build_mini_flops(work: Workload, frozen_layers: int, new_layers: int) -> float:
    """Return the cost of step 1b, equation A4: new layers train between others and a frozen head.

    A new layer costs three passes, the lowest of them two: the gradient of its input is not needed.
    """
    layers = [layer_flops(work, layer) for layer in work.layers(frozen_layers + new_layers)]
    passes = sum(layers) + 2 * sum(layers[frozen_layers:]) - layers[frozen_layers]
    return work.num_sequences * (passes + 2 * lm_head_flops(work))


def adapt_flops(work: Workload, num_layers: int, *, trains_body: bool = False) -> float:
    """Return the cost of step 2, equation A3: embeddings and tied output train, the body does not.

    Args:
        work: what goes through.
        num_layers: of the body.
        trains_body: whether all weights of the body train as well.
    """
    num_passes = 3 if trains_body else 2
    stack = num_passes * _all_layers(work, num_layers)
    return work.num_sequences * (stack + 2 * lm_head_flops(work) + output_gradient_flops(work))


# --- What is executed ---


def executed_layer(
    work: Workload,
    layer: LayerProducts,
    num_queries: float,
    *,
    trains: bool = False,
    passes_back: bool = False,
) -> float:
    """Return FLOPs of one layer on one sequence, forward and backward.

    Without `trains` and `passes_back` the layer belongs to a frozen prefix and only runs forward.

    Args:
        work: what goes through.
        layer: its products.
        num_queries: positions whose output is computed; keys and values are computed at all.
        trains: whether weight gradients are computed.
        passes_back: whether the gradient of the layer's input is computed.
    """
    inputs = num_queries * layer.query + work.seq_length * layer.key
    pairs = _pairs(work, layer, num_queries) * layer.pair
    outputs = num_queries * layer.output
    flops = inputs + pairs + outputs
    if trains or passes_back:
        flops += 2 * pairs + outputs
    if passes_back:
        flops += inputs
    if trains:
        flops += inputs + outputs
    return flops


def _executed_stack(
    work: Workload,
    layers: Sequence[LayerProducts],
    num_read: float,
    *,
    trains: bool,
    lowest_passes_back: bool = True,
) -> float:
    """Return FLOPs of layers on one sequence, both ways; the last is run at `num_read` positions.

    Without `lowest_passes_back` the gradient of the lowest layer's input is not computed.
    """
    flops = 0.0
    for index, layer in enumerate(layers):
        num_queries = num_read if index == len(layers) - 1 else work.seq_length
        passes_back = lowest_passes_back or index > 0
        flops += executed_layer(work, layer, num_queries, trains=trains, passes_back=passes_back)
    return flops


def executed_pretrain(work: Workload, depths: Sequence[int]) -> float:
    """Return what step 1 executes with a head at each of `depths`.

    Only the deepest layer is narrowed to the loss positions.
    """
    stack = _executed_stack(work, work.layers(max(depths)), work.num_read, trains=True)
    return work.num_sequences * (stack + 3 * len(depths) * lm_head_flops(work))


def executed_build_mini(work: Workload, frozen_layers: int, new_layers: int) -> float:
    """Return what step 1b executes: the prefix only forward, the new layers both ways."""
    layers = work.layers(frozen_layers + new_layers)
    prefix = sum(executed_layer(work, layer, work.seq_length) for layer in layers[:frozen_layers])
    new = _executed_stack(
        work, layers[frozen_layers:], work.num_read, trains=True, lowest_passes_back=False
    )
    return work.num_sequences * (prefix + new + 2 * lm_head_flops(work))


def executed_adapt(work: Workload, num_layers: int, *, trains_body: bool = False) -> float:
    """Return what step 2 executes.

    Every layer passes the gradient back, weights get one where they train, and the output
    projection trains.
    """
    stack = _executed_stack(work, work.layers(num_layers), work.num_read, trains=trains_body)
    return work.num_sequences * (stack + 2 * lm_head_flops(work) + output_gradient_flops(work))


def divergence_flops(work: Workload, num_layers: int) -> float:
    """Return what `replay_kl` adds if all samples are replayed.

    It is the pass of the body without its updates with its scores over the base's ids, and the
    scores of the trained one, whose loss has them too, with their gradients.
    """
    teacher = sum(executed_layer(work, layer, work.seq_length) for layer in work.layers(num_layers))
    scores = (2 + work.num_base / work.vocab_size) * output_flops(work)
    scores += output_gradient_flops(work)
    return work.num_sequences * (teacher + scores)


# --- Costs of steps and of a recipe ---


def step_flops(
    step: str,
    work: Workload,
    depths: Sequence[int],
    frozen_layers: int = 0,
    *,
    trains_body: bool = False,
    low_rank: int = 0,
) -> Cost:
    """Return the cost of `work` in a step; work.steps = 1 gives one update.

    Args:
        step: "pretrain", "build-mini" or "adapt".
        work: what goes through.
        depths: where heads sit, the deepest being the number of layers that run.
        frozen_layers: layers below the new ones, in step 1b.
        trains_body: whether all weights train in step 2.
        low_rank: numbers in low-rank updates that train in step 2.
    """
    num_layers = max(depths)
    if step == "pretrain":
        return Cost(pretrain_flops(work, num_layers, len(depths)), executed_pretrain(work, depths))
    if step == "build-mini":
        new_layers = num_layers - frozen_layers
        return Cost(
            build_mini_flops(work, frozen_layers, new_layers),
            executed_build_mini(work, frozen_layers, new_layers),
        )
    assert step == "adapt", step
    # Each number of an update costs a product forward and two backward, of 2 FLOPs each.
    updates = 6.0 * low_rank * work.num_sequences * work.seq_length
    return Cost(
        adapt_flops(work, num_layers, trains_body=trains_body) + updates,
        executed_adapt(work, num_layers, trains_body=trains_body) + updates,
    )


def finetune_flops(work: Workload, num_outputs: int, *, reads_start: bool) -> Cost:
    """Return the cost of finetuning all but the embeddings.

    The paper has no formula for this step; `formula` is A1 with the task head in place of the
    language model's.

    Args:
        work: its seq_length is the mean number of tokens of an example.
        num_outputs: scores of the head.
        reads_start: whether these are at one position, after the dense layer of a kind that has
            one, else at every position.
    """
    body = work.body
    num_queries = 1 if reads_start else work.seq_length
    head = 2.0 * body.hidden_size * num_outputs
    if body.tasks_read_head:
        head += body.products.head
    if reads_start and body.task_activation:
        head += 2.0 * body.hidden_size**2
    head *= num_queries
    stack = _executed_stack(work, work.layers(body.num_layers), num_queries, trains=True)
    formula = 3 * work.num_sequences * (_all_layers(work, body.num_layers) + head)
    return Cost(formula, work.num_sequences * (stack + 3 * head))
