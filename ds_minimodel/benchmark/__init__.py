"""Throughput benchmark: training steps and kernels against their peers, in one run on one machine."""

STEPS = ("pretrain", "build-mini", "adapt-mini", "adapt-full", "finetune")
PEERS = ("reference", "hf", "hf-untuned", "hf-compiled", "hf-deepspeed")
IN_ENGINE = ("ds_minimodel", "reference", "hf-deepspeed")  # contestants that run on several ranks, with ZeRO
KERNELS = ("residual_layer_norm", "bias_gelu", "masked_softmax", "attention", "dropout", "linear_cross_entropy")
