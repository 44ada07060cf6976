"""Each fused operator, forward and backward, against the same computation by others."""

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device import CLOCKS, Clock, copy_bandwidth, device, synchronize
from benchmarks.processes import Contestant, Failed
from benchmarks.record import table
from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops.attention import fused_attention, unfused_attention
from ds_minimodel.ops.loading import backend
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.report.render import Table

PAGE = """Kernels against their peers
Times as fast as others, forward and backward, medians of interleaved rounds. torch: its eager
operators; compiled: the same under torch.compile; apex and liger: those packages' own, where
installed; kernel and products: the ways of attention that a device has. Copy: share of the
bandwidth of a large copy, counting the fewest bytes that must move (every input read once, every
output written once); above 100 % where tensors stay in the caches."""
EPS = 1e-5
P = 0.1
LEAST_SECONDS = 0.02  # of one timing: as many calls as that takes


@dataclass
class Case:
    """One operator at one shape. `run` maps a contestant's name to a function of the leaves that
    gives a tensor.
    """

    op: str
    shape: tuple[int, ...]
    variant: str
    leaves: tuple[torch.Tensor, ...]  # tensors; those that require a gradient get one
    run: dict[str, Callable]
    elements: int  # of activations moved, at the least, forward and backward


def _leaf(*shape: int, dtype: torch.dtype, trains: bool = True, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, device=device(), dtype=dtype)).requires_grad_(trains)


def _keys(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=device())


def residual_norm(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    x = _leaf(rows, width, dtype=dtype)
    residual = _leaf(rows, width, dtype=dtype)
    weight = _leaf(width, dtype=dtype, trains=trains)
    bias = _leaf(width, dtype=dtype, trains=trains)
    keys = _keys(rows) if p else None

    def eager(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(residual + F.dropout(x, p, training=p > 0), (width,), weight, bias, EPS)

    run = {
        "ds_minimodel": lambda x, residual, weight, bias: ops.residual_norm(
            x, residual, weight, bias, EPS, p, keys
        )[0],
        "torch": eager,
    }
    if p == 0 and x.is_cuda and importlib.util.find_spec("apex"):
        from apex.normalization.fused_layer_norm import fused_layer_norm_affine

        run["apex"] = lambda x, residual, weight, bias: fused_layer_norm_affine(
            residual + x, weight, bias, (width,), EPS
        )
    if p == 0 and x.is_cuda and importlib.util.find_spec("liger_kernel"):
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        run["liger"] = lambda x, residual, weight, bias: LigerLayerNormFunction.apply(
            residual + x, weight, bias, EPS
        )
    # Forward: x, residual in, sum and result out. Backward: gradient and sum in, one or two
    # gradients out.
    return Case(
        "residual_norm",
        (rows, width),
        _variant(trains, p),
        (x, residual, weight, bias),
        run,
        rows * width * (8 if p else 7),
    )


def bias_gelu(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    x = _leaf(rows, width, dtype=dtype)
    bias = _leaf(width, dtype=dtype, trains=trains)
    run = {"ds_minimodel": ops.bias_gelu, "torch": lambda x, bias: F.gelu(x + bias)}
    return Case("bias_gelu", (rows, width), _variant(trains, p), (x, bias), run, rows * width * 5)


def gated(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    x = _leaf(rows, 2 * width, dtype=dtype)

    def eager(x: Tensor) -> Tensor:
        inner, gate = x.chunk(2, -1)
        return F.gelu(inner) * gate

    run = {"ds_minimodel": lambda x: ops.gated(x, "gelu"), "torch": eager}
    if x.is_cuda and importlib.util.find_spec("liger_kernel"):  # which has the approximation alone
        from liger_kernel.ops.geglu import LigerGELUMulFunction

        run["liger"] = lambda x: LigerGELUMulFunction.apply(*x.chunk(2, -1))
    return Case("gated", (rows, width), "gelu", (x,), run, rows * width * 8)


def rotary(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    length = min(512, rows)
    heads = max(1, width // 64)
    x = _leaf(rows // length, length, width, dtype=dtype)
    waves = 10_000.0 ** -torch.linspace(0, 1, width // heads // 2, device=device())
    table = ops.rotary_table(waves, length)
    cosine, sine = table.repeat(1, 1, 2).to(dtype)[:, :, None].unbind(1)

    def eager(x: Tensor) -> Tensor:  # as in Llama's published code
        heads_BSND = x.unflatten(-1, (heads, -1))
        first, second = heads_BSND.chunk(2, -1)
        return (heads_BSND * cosine + torch.cat((-second, first), -1) * sine).flatten(2)

    run = {"ds_minimodel": lambda x: ops.rotary(x, heads, table), "torch": eager}
    if x.is_cuda and importlib.util.find_spec("liger_kernel"):
        from liger_kernel.ops.rope import LigerRopeFunction

        def liger(x: Tensor) -> Tensor:
            turned, _ = LigerRopeFunction.apply(
                x.unflatten(-1, (heads, -1)).transpose(1, 2),
                x.new_empty(len(x), 0, length, width // heads),
                cosine.transpose(0, 1),
                sine.transpose(0, 1),
            )
            return turned.transpose(1, 2).flatten(2)

        run["liger"] = liger
    return Case("rotary", tuple(x.shape), "", (x,), run, rows * width * 4)


def masked_softmax(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    scores = _leaf(1, max(1, rows // width), width, width, dtype=dtype)
    keys = _keys(*scores.shape[:-1]) if p else None

    def eager(scores: Tensor) -> Tensor:
        return F.dropout(torch.softmax(scores * 0.125, -1), p, training=p > 0)

    run = {
        "ds_minimodel": lambda scores: ops.masked_softmax(scores, None, 0.125, p, keys),
        "torch": eager,
    }
    if p == 0 and scores.is_cuda and importlib.util.find_spec("scaled_softmax_cuda"):  # of apex
        from apex.transformer.functional.fused_softmax import ScaledSoftmax

        run["apex"] = lambda scores: ScaledSoftmax.apply(scores, 0.125)
    # Forward: scores in, probabilities out (with dropout, before and after it). Backward: two in,
    # one out.
    return Case(
        "masked_softmax",
        tuple(scores.shape),
        _variant(trains, p),
        (scores,),
        run,
        scores.numel() * (6 if p else 5),
    )


def attention(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    length = min(512, rows // 4)
    heads = width // 64 if width % 64 == 0 else 3
    projected = _leaf(rows // length, length, 3 * width, dtype=dtype)
    keys = _keys(rows // length, heads, length) if p else None

    def fused(projected: Tensor) -> Tensor:
        q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p).transpose(1, 2).flatten(2)

    def in_way(way: Callable) -> Callable:
        return lambda projected: way(projected, None, heads, None, p, keys)

    run = {
        "ds_minimodel": lambda projected: ops.attention(projected, heads, None, p, keys),
        "torch": fused,
    }
    ways: dict[str, Callable] = {"products": unfused_attention}
    if backend("attention", projected.device, dtype).startswith("compiled"):
        ways["kernel"] = fused_attention
    run |= {name: in_way(way) for name, way in ways.items()}
    # The products bind it: no share of copy bandwidth.
    return Case(
        "attention",
        (rows // length, length, heads, width // heads),
        _variant(trains, p),
        (projected,),
        run,
        0,
    )


def window_attention(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    """A window of 64 keys on each side, as in ModernBERT."""
    length = min(512, rows)
    heads = width // 64
    reach = 64
    queries, keys_values = (
        _leaf(rows // length, length, parts * width, dtype=dtype) for parts in (1, 2)
    )
    keys = _keys(rows // length, heads, length) if p else None
    positions = torch.arange(length, device=device())
    seen = (positions[:, None] - positions).abs() <= reach

    def fused(queries: Tensor, keys_values: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in (queries, *keys_values.chunk(2, -1))
        )
        return F.scaled_dot_product_attention(q, k, v, seen, dropout_p=p).transpose(1, 2).flatten(2)

    def ours(queries: Tensor, keys_values: Tensor) -> Tensor:
        return ops.window_attention(
            keys_values, queries, heads, positions, (reach, reach), None, p, keys
        )

    run = {"ds_minimodel": ours, "torch": fused}
    shape = (rows // length, length, heads, width // heads)
    return Case("window_attention", shape, _variant(trains, p), (queries, keys_values), run, 0)


def dropout(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    x = _leaf(rows, width, dtype=dtype)
    keys = _keys(rows)
    run = {"ds_minimodel": lambda x: ops.dropout(x, P, keys), "torch": lambda x: F.dropout(x, P)}
    return Case("dropout", (rows, width), _variant(trains, P), (x,), run, rows * width * 4)


def linear_cross_entropy(rows: int, width: int, dtype: torch.dtype, trains: bool, p: float) -> Case:
    vocabulary = 50_000 if width >= 512 else 5_000
    # Logits of a model's size: larger ones give probabilities that are denormal, and slow for
    # everybody.
    x = _leaf(rows, width, dtype=dtype)
    weight = _leaf(vocabulary, width, dtype=dtype, trains=trains, scale=0.02)
    bias = _leaf(vocabulary, dtype=dtype, trains=trains)
    targets = torch.randint(vocabulary, (rows,), device=device())

    def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight, bias).float(), targets, reduction="sum")

    run = {
        "ds_minimodel": lambda x, weight, bias: ops.linear_cross_entropy(x, weight, bias, targets),
        "torch": eager,
    }
    if x.is_cuda and importlib.util.find_spec("liger_kernel"):
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        run["liger"] = lambda x, weight, bias: LigerFusedLinearCrossEntropyFunction.apply(
            x, weight, targets, bias, None, IGNORED, 0.0, 0.0, "sum"
        )[0]
    # The products bind it: no share of copy bandwidth.
    return Case(
        "linear_cross_entropy",
        (rows, width, vocabulary),
        _variant(trains, p),
        (x, weight, bias),
        run,
        0,
    )


def _variant(trains: bool, p: float) -> str:
    return ", ".join(["trained" if trains else "frozen", *(["dropout"] if p else [])])


# Operator -> builder, and which (trains, dropout) make a difference to it.
OPERATORS: dict[str, tuple[Callable[..., Case], tuple[tuple[bool, float], ...]]] = {
    "residual_norm": (residual_norm, ((False, 0), (True, 0), (False, P), (True, P))),
    "bias_gelu": (bias_gelu, ((False, 0), (True, 0))),
    "gated": (gated, ((False, 0),)),
    "rotary": (rotary, ((False, 0),)),
    "masked_softmax": (masked_softmax, ((False, 0), (False, P))),
    "attention": (attention, ((False, 0), (False, P))),
    "window_attention": (window_attention, ((False, 0), (False, P))),
    "dropout": (dropout, ((False, P),)),
    "linear_cross_entropy": (linear_cross_entropy, ((False, 0), (True, 0))),
}
# (rows, width) that a training step at RoBERTa-base sizes has, smaller ones, and odd ones.
SHAPES = {
    "residual_norm": ((4096, 768), (2048, 768), (308, 768), (1024, 256), (333, 100), (64, 128)),
    "bias_gelu": (
        (4096, 3072),
        (2048, 3072),
        (308, 3072),
        (308, 768),
        (1024, 512),
        (333, 100),
        (64, 128),
    ),
    "gated": ((4096, 1152), (2048, 1152), (308, 1152), (333, 100)),
    "rotary": ((4096, 1536), (2048, 768), (308, 768), (100, 20)),
    "masked_softmax": ((24576, 512), (12288, 128), (1001, 77), (256, 32)),
    "attention": ((2048, 768), (512, 768), (1024, 256), (308, 768), (148, 60)),
    "window_attention": ((2048, 768), (512, 768), (1024, 256), (128, 768)),
    "dropout": ((4096, 768), (308, 768), (333, 100)),
    "linear_cross_entropy": ((308, 768), (77, 256), (33, 100)),
}
GPU_SHAPES = {
    "residual_norm": ((65536, 768), (16384, 768), (4928, 768), (4095, 771)),
    "bias_gelu": ((65536, 3072), (16384, 3072), (4928, 768), (4095, 771)),
    "gated": ((65536, 1152), (4928, 1152), (4095, 771)),
    "rotary": ((65536, 1536), (4928, 768)),
    "masked_softmax": ((393216, 512), (98304, 128), (1001, 77)),
    "attention": ((65536, 768), (16384, 768)),
    "window_attention": ((65536, 768), (16384, 768)),
    "dropout": ((65536, 768), (4095, 771)),
    "linear_cross_entropy": ((4928, 768), (1232, 768), (333, 256)),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ops", nargs="+", choices=OPERATORS, default=[*OPERATORS], help="default: all"
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=DTYPES,
        default=["bf16" if torch.cuda.is_available() else "fp32"],
        help="default: %(default)s",
    )
    parser.add_argument("--threads", type=int, default=1, help="on the CPU; default: 1")
    parser.add_argument(
        "--no-compiled", dest="compiled", action="store_false", help="not against torch.compile"
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of each operator, from a process of its own."""
    for precision, op in itertools.product(options.precision, options.ops):
        try:
            with Contestant(op, options.threads, time_limit=options.time_limit) as contestant:
                (rows,) = contestant.ask(
                    time_operator,
                    op=op,
                    precision=precision,
                    repeats=options.repeats,
                    compiled=options.compiled,
                    clock=options.clock,
                )
        except Failed as failure:
            rows = [{"name": f"{op} {precision}", "error": str(failure)}]
        yield from rows


def time_operator(
    op: str, precision: str, repeats: int, compiled: bool, clock: str
) -> list[dict[str, Any]]:
    """Rows of an operator at all its shapes, contestants in turns; medians over `repeats`.

    copy_share: bytes a second that ours moves at the least, as a share of what a large copy moves;
    None where the operator is bound by its products.
    """
    build, variants = OPERATORS[op]
    shapes = (GPU_SHAPES if device().type == "cuda" else SHAPES)[op]
    time = CLOCKS[clock]
    rows = []
    bandwidth = copy_bandwidth(time)
    for (height, width), (trains, p) in itertools.product(shapes, variants):
        torch.manual_seed(0)
        case = build(height, width, DTYPES[precision], trains, p)
        if compiled:
            torch._dynamo.reset()
            case.run["compiled"] = torch.compile(case.run["torch"])
        seconds = _in_turns(case, repeats, time)
        moved = case.elements * case.leaves[0].element_size() / bandwidth
        rows.append(
            {
                "op": op,
                "shape": case.shape,
                "variant": case.variant,
                "precision": precision,
                "seconds": seconds,
                "copy_share": moved / seconds["ds_minimodel"] if moved else None,
            }
        )
    return rows


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    others = list(
        dict.fromkeys(name for row in rows for name in row["seconds"] if name != "ds_minimodel")
    )
    lines = []
    for row in rows:
        seconds = row["seconds"]
        ours = seconds["ds_minimodel"]
        lines.append(
            [
                row["op"],
                " × ".join(map(str, row["shape"])),
                row["variant"],
                row["precision"],
                f"{ours * 1e6:,.0f}",
                f"{row['copy_share']:.0%}" if row["copy_share"] else "",
                *(f"{seconds[name] / ours:.2f}" if name in seconds else "" for name in others),
            ]
        )
    return [
        table(
            "Times as fast as others",
            ["operator", "shape", "variant", "precision", "microseconds", "copy", *others],
            lines,
        )
    ]


def _in_turns(case: Case, repeats: int, clock: Clock) -> dict[str, float]:
    calls = {name: _forward_and_backward(case, function) for name, function in case.run.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    number = max(1, min(1000, round(LEAST_SECONDS / _seconds(calls["torch"], 1, clock))))
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(_seconds(call, number, clock) / number)
    return {name: statistics.median(values) for name, values in times.items()}


def _forward_and_backward(case: Case, function: Callable) -> Callable[[], object]:
    grad = torch.randn_like(function(*case.leaves).detach())
    wanted = [leaf for leaf in case.leaves if leaf.requires_grad]
    return lambda: torch.autograd.grad(function(*case.leaves), wanted, grad)


def _seconds(call: Callable[[], object], number: int, clock: Clock) -> float:
    synchronize()
    start = clock()
    for _ in range(number):
        call()
    synchronize()
    return clock() - start
