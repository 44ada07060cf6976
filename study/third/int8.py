"""Seconds of a frozen layer's products in bf16 or fp32, and in int8 by oneDNN's dynamic quantisation, in turns.

    python study/third/int8.py

The shapes are SmolLM2-135M's at 8 x 128 positions; weights a channel, activations a tensor, as torch has it.
"""

from statistics import median

import torch

from benchmarks.device import CLOCKS, device_name, seconds_of
from ds_minimodel import ops
from ds_minimodel.ops.cpu import configure_cpu, has_bf16_products

POSITIONS, TURNS = 8 * 128, 7
SHAPES = {"qkv": (576, 960), "attention_out": (576, 576), "ffn_in": (576, 3072), "ffn_out": (1536, 576)}


def main() -> None:
    configure_cpu()
    torch.backends.quantized.engine = "onednn"
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if has_bf16_products() else torch.float32
    print(f"{device_name()}, torch {torch.__version__}, one thread, {dtype}")
    total = {"float": 0.0, "int8": 0.0}
    for name, (inputs, outputs) in SHAPES.items():
        weight, x = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(POSITIONS, inputs)
        scales = weight.abs().amax(1) / 127
        quantised = torch.quantize_per_channel(weight, scales, torch.zeros(outputs, dtype=torch.long), 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantised, None)
        w_low, x_low = weight.to(dtype), x.to(dtype)
        ways = {
            "float": lambda: ops.linear(x_low, w_low),
            "int8": lambda: torch.ops.quantized.linear_dynamic(x_low.float(), packed).to(dtype),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, run in ways.items():
                found[way].append(seconds_of(run, CLOCKS["cpu"], 20))
        error = (ways["int8"]().float() - x @ weight.T).norm() / (x @ weight.T).norm()
        times = {way: median(seconds) for way, seconds in found.items()}
        total = {way: seconds + times[way] for way, seconds in total.items()}
        ratio = times["float"] / times["int8"]
        print(f"{name}: {1e3 * times['float']:.2f} ms, int8 {1e3 * times['int8']:.2f} ms, {ratio:.2f} times as fast, off by {error:.1%}")
    print(f"a layer: {total['float'] / total['int8']:.2f} times as fast")


if __name__ == "__main__":
    main()
