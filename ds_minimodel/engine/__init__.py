"""Training on DeepSpeed: ranks, memory planning, the one training loop and its schedule, checkpoints.

run: the specification of a run. loop: the training loop. zero: all that knows DeepSpeed's insides.
"""
