"""What each ratio was expected to be before it was measured, and why; printed beside what came out."""

# What bf16 is called where the CPU has no bf16 products and ours are made in fp32.
BF16_IN_FP32 = "bf16 in fp32"
# (workload, precision, peer) -> times the peer's tokens/s, on a CPU. The figures of an earlier prototype on a CPU
# with AVX512-BF16, batch 4 x 512, one thread.
STEPS = {
    ("adapt-mini", "fp32", "hf"): 4.8,
    ("adapt-full", "fp32", "hf"): 3.0,
    ("adapt-mini", "bf16", "hf"): 2.9,
    ("adapt-full", "bf16", "hf"): 2.1,
    ("adapt-mini", "bf16", "hf-compiled"): 2.5,
    # The parts of that prototype's gain that a step in which all trains keeps: the head at masked positions,
    # oneDNN for fp32 (on that CPU) and the last layer; without the cheaper backward pass of frozen layers.
    ("pretrain", "fp32", "hf"): 2.5,
    ("build-mini", "fp32", "hf"): 2.5,
    ("finetune", "fp32", "hf"): 1.8,
    **{(step, "fp32", "reference"): 1.04 for step in ("pretrain", "adapt-mini", "adapt-full")},
    # The ratios found in fp32 on such a CPU, times 2.9: torch's imitation of bf16 makes Hugging Face 3.1 times as slow
    # there, the roundings around fp32 products ours by a tenth at the most.
    ("adapt-mini", BF16_IN_FP32, "hf"): 8.0,
    ("adapt-full", BF16_IN_FP32, "hf"): 5.4,
    ("pretrain", BF16_IN_FP32, "hf"): 4.7,
    ("finetune", BF16_IN_FP32, "hf"): 3.4,
}
# Least share of the device's best matrix product, by the paper's FLOPs: what the prototype reached (CPU), and the
# target on a GPU.
MATMUL_SHARES = {
    ("cpu", "adapt-mini"): 0.83,
    ("cpu", "adapt-full"): 0.77,
    ("cuda", "adapt-mini"): 0.5,
    ("cuda", "adapt-full"): 0.5,
}

# (operator, precision) -> times torch's eager operators, forward and backward, on a CPU with AVX-512.
KERNELS = {
    ("residual_layer_norm", "fp32"): 1.05,
    ("residual_layer_norm", "bf16"): 2.0,
    ("bias_gelu", "fp32"): 2.34,
    ("bias_gelu", "bf16"): 1.69,
    ("masked_softmax", "fp32"): 2.61,
    ("masked_softmax", "bf16"): 2.49,
}
