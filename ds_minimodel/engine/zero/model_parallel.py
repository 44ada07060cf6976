"""What DeepSpeed asks about the ranks that hold one replica between them."""

import torch.distributed as dist

from ds_minimodel.common.errors import UserError


def model_parallel_unit(run, world):
    """DeepSpeed's `mpu` for `world`, None where every rank holds a replica of its own."""
    if world.tensor.size == 1:
        return None
    if run.zero_stage == 0 and run.precision != "fp32" and run.clip:
        # DeepSpeed 0.19.8 asks the gradients, not the parameters, whether they are parts: the norm comes out wrong.
        raise UserError(
            f"engine.zero_stage: stage 0 cannot clip {run.precision} gradients with "
            f"engine.tensor_parallel {world.tensor.size}; use stage 1, which costs no more"
        )
    return ModelParallelUnit(world)


class ModelParallelUnit:
    """DeepSpeed's `mpu`: it divides optimizer state and sums gradients over `data`, and norms over `tensor` too.

    A parameter with the attribute `tensor_model_parallel` counts in the norm on every rank, all others on one.
    """

    def __init__(self, world):
        self.data, self.tensor = world.data, world.tensor

    def get_data_parallel_rank(self):
        return self.data.rank

    def get_data_parallel_world_size(self):
        return self.data.size

    def get_data_parallel_group(self):
        return self.data.handle

    def get_data_parallel_group_ranks(self):
        return dist.get_process_group_ranks(self.data.handle)

    def get_model_parallel_rank(self):
        return self.tensor.rank

    def get_model_parallel_world_size(self):
        return self.tensor.size

    def get_model_parallel_group(self):
        return self.tensor.handle
