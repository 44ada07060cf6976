"""Training on DeepSpeed: start of the ranks, the one training loop, checkpoints. The only package that imports it."""
