"""Training on DeepSpeed: ranks, the one training loop and its schedule, partition, checkpoints.

run: the specification of a run. loop: the training loop. zero: all that knows DeepSpeed's insides.
"""
