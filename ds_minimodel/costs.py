"""FLOPs of every step: by the paper's formulas (appendix A.1), and as this implementation executes them.

Both count the multiplications of matrices only, 2mnp for an m x n by an n x p matrix, as the paper does:
no biases, activation functions, softmax, norms, embedding look-ups or optimizer updates.

The paper's formulas assume that every layer runs at every position and that a frozen layer costs its
forward pass twice. What is executed differs from that:
- the last layer computes queries, attention output and feed-forward only at the positions that are read;
- the backward pass of the two attention products (QK^T, and the product with V) goes to both operands, also
  where weights are frozen (the "additional backward computation" that the paper's footnote 11 leaves out);
- in step 1b the lowest trainable layer leaves out only the gradient of its input, not its whole dL/dx.

Symbols: s positions, h hidden size, f feed-forward size, V vocabulary, p share of positions that are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

EFLOP = 1e18
V100_FLOPS_PER_SECOND = 30e12  # the paper's estimate of what one V100 sustains (section 3)
EFLOPS_PER_V100_DAY = V100_FLOPS_PER_SECOND * 24 * 3600 / EFLOP  # 2.592


@dataclass(frozen=True)
class Work:
    """Sizes of the layers and how much goes through them. `steps` x `batch_size` sequences in all."""

    hidden_size: int
    ffn_size: int  # the paper's formulas assume 4 x hidden_size
    vocab_size: int
    seq_length: int
    mask_prob: float  # share of positions that the MLM head reads
    batch_size: int = 1
    steps: int = 1

    @property
    def num_sequences(self) -> int:
        return self.batch_size * self.steps

    @property
    def num_read(self) -> float:
        """Positions that the MLM head reads in one sequence, on average."""
        return self.mask_prob * self.seq_length


class Cost(NamedTuple):
    """FLOPs by the paper's formula, and FLOPs that are executed."""

    formula: float
    executed: float


# --- Forward pass of one sequence, as the paper counts it ---


def layer_flops(work: Work) -> float:
    """FLOP_layer of the paper: 24sh^2 + 4hs^2 where f = 4h."""
    s, h, f = work.seq_length, work.hidden_size, work.ffn_size
    return 8 * s * h * h + 4 * s * s * h + 4 * s * h * f


def dense_flops(work: Work) -> float:
    """FLOPs of the MLM head's h x h layer at the read positions."""
    return 2 * work.num_read * work.hidden_size**2


def output_flops(work: Work) -> float:
    """FLOPs of the tied h x V output projection at the read positions: the paper's p FLOP_outproj."""
    return 2 * work.num_read * work.hidden_size * work.vocab_size


def lm_head_flops(work: Work) -> float:
    """FLOP_lm of the paper."""
    return dense_flops(work) + output_flops(work)


# --- The paper's formulas ---


def pretrain_flops(work: Work, num_layers: int, num_heads: int = 1) -> float:
    """Step 1, equation A1: forward and backward through the stack, and through each of `num_heads` MLM heads.

    With two heads this is the paper's cost of MiniJoint (footnote 2): the layers run once for both.
    """
    return 3 * work.num_sequences * (num_layers * layer_flops(work) + num_heads * lm_head_flops(work))


def build_mini_flops(work: Work, frozen_layers: int, new_layers: int) -> float:
    """Step 1b, equation A4: `frozen_layers` forward only, `new_layers` on top trained, MLM head frozen."""
    layers = frozen_layers + new_layers + 2 * new_layers - 1
    return work.num_sequences * (layers * layer_flops(work) + 2 * lm_head_flops(work))


def adapt_flops(work: Work, num_layers: int) -> float:
    """Step 2, equation A3: body frozen, embeddings trained through it, tied output projection trained."""
    return work.num_sequences * (2 * num_layers * layer_flops(work) + 2 * lm_head_flops(work) + output_flops(work))


# --- What is executed ---


def executed_layer(work: Work, num_queries: float, trains: bool = False, passes_back: bool = False) -> float:
    """FLOPs of one layer on one sequence, forward and backward.

    num_queries  positions whose output is computed; keys and values are computed at all
    trains       weight gradients are computed
    passes_back  the gradient of the layer's input is computed
    With neither the layer belongs to a frozen prefix and only runs forward.
    """
    s, h, f = work.seq_length, work.hidden_size, work.ffn_size
    input_projections = 2 * h * h * (num_queries + 2 * s)  # W_q; W_k and W_v
    products = 4 * num_queries * s * h
    output_projections = num_queries * (2 * h * h + 4 * h * f)  # W_o; the feed-forward block
    flops = input_projections + products + output_projections
    if trains or passes_back:
        flops += 2 * products + output_projections
    if passes_back:
        flops += input_projections
    if trains:
        flops += input_projections + output_projections
    return flops


def executed_pretrain(work: Work, depths: Sequence[int]) -> float:
    """Step 1 with an MLM head at each of `depths`; only the deepest layer is narrowed to what is read."""
    whole = executed_layer(work, work.seq_length, trains=True, passes_back=True)
    last = executed_layer(work, work.num_read, trains=True, passes_back=True)
    heads = 3 * len(depths) * lm_head_flops(work)
    return work.num_sequences * ((max(depths) - 1) * whole + last + heads)


def executed_build_mini(work: Work, frozen_layers: int, new_layers: int) -> float:
    """Step 1b: prefix forward only; the lowest new layer needs no gradient of its input."""
    flops = frozen_layers * executed_layer(work, work.seq_length)
    for layer in range(new_layers):
        num_queries = work.num_read if layer == new_layers - 1 else work.seq_length
        flops += executed_layer(work, num_queries, trains=True, passes_back=layer > 0)
    return work.num_sequences * (flops + 2 * lm_head_flops(work))


def executed_adapt(work: Work, num_layers: int) -> float:
    """Step 2: every layer passes the gradient back without weight gradients; the output projection trains."""
    whole = executed_layer(work, work.seq_length, passes_back=True)
    last = executed_layer(work, work.num_read, passes_back=True)
    head = 2 * dense_flops(work) + 3 * output_flops(work)
    return work.num_sequences * ((num_layers - 1) * whole + last + head)


# --- Costs of steps and of a recipe ---


def step_flops(step: str, work: Work, depths: Sequence[int], frozen_layers: int = 0) -> Cost:
    """Cost of `work` in the step "pretrain", "build-mini" or "adapt"; work.steps = 1 gives one update.

    depths: where MLM heads sit, the deepest being the number of layers that run.
    frozen_layers: layers below the new ones, in step 1b.
    """
    num_layers = max(depths)
    if step == "pretrain":
        return Cost(pretrain_flops(work, num_layers, len(depths)), executed_pretrain(work, depths))
    if step == "build-mini":
        layers = frozen_layers, num_layers - frozen_layers
        return Cost(build_mini_flops(work, *layers), executed_build_mini(work, *layers))
    if step == "adapt":
        return Cost(adapt_flops(work, num_layers), executed_adapt(work, num_layers))
    raise ValueError(f"no cost is defined for the step {step!r}")


def finetune_flops(work: Work, num_layers: int, num_outputs: int, reads_start: bool) -> Cost:
    """Cost of finetuning, embeddings frozen, positions, embedding norm and all above trained.

    reads_start: the head is a dense layer and `num_outputs` scores, read at one position; else it is
    `num_outputs` scores at every position. work.seq_length is the mean number of tokens of an example.
    The paper has no formula for this step; `formula` is A1 with the task head in place of the MLM head.
    """
    h = work.hidden_size
    if reads_start:
        num_queries, head = 1, 2 * h * (h + num_outputs)
    else:
        num_queries, head = work.seq_length, 2 * work.seq_length * h * num_outputs
    whole = executed_layer(work, work.seq_length, trains=True, passes_back=True)
    last = executed_layer(work, num_queries, trains=True, passes_back=True)
    return Cost(
        3 * work.num_sequences * (num_layers * layer_flops(work) + head),
        work.num_sequences * ((num_layers - 1) * whole + last + 3 * head),
    )
