"""Score of a task model on the task's development file after each epoch of its finetuning."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ds_minimodel.data.tokenizer import Tokenizer
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.tasks import FINETUNED
from ds_minimodel.tasks.batches import INFERENCE_TOKENS, inference_batches
from ds_minimodel.training.checkpoints.best import BestWeights
from ds_minimodel.training.loop import Evaluation, Weights
from ds_minimodel.training.ranks.world import World


def evaluation(
    recipe: Recipe,
    name: str,
    labels: list[str] | None,
    tokenizer: Tokenizer,
    separators: int,
    steps: range,
    world: World,
    best: BestWeights | None,
) -> Evaluation:
    """The Evaluation of a task's finetuning; without a development file there is none.

    labels, separators: as the task's model has them. steps: after which it is scored. best: what is to keep the
    weights of the best score. Batches are the same on any number of ranks, and need no more memory than a training
    step's.
    """
    task, source = recipe.finetune.tasks[name], recipe.languages.source
    if not task.dev:
        return Evaluation()
    kind, max_length = FINETUNED[task.kind], recipe.finetune.of(name, "max_length")
    records = kind.read(task.dev, task, source, labels)
    encoded = kind.encode(tokenizer, records, task, max_length, separators)
    room = min(INFERENCE_TOKENS, recipe.engine.micro_batch_size * max_length)
    batches, data = list(inference_batches(encoded.examples, room)), world.data

    def scores(step: int, module: torch.nn.Module, weights: Callable[[], Weights]) -> dict[str, float]:
        own = []
        for first in range(0, len(batches), data.size):
            is_filler = first + data.rank >= len(batches)  # all ranks run the model equally often
            index, batch = batches[first if is_filler else first + data.rank]
            tensors = to_tensors(batch, world.device)
            del tensors["targets"]
            logits = module(tensors).float().cpu().numpy()
            if not is_filler and world.tensor.rank == 0:
                own.append((index, logits))
        outputs = [pair for pairs in world.gather(lambda: own) for pair in pairs]
        values = world.from_main(lambda: kind.score(task, source, records, encoded, outputs))
        score = values.pop("score")
        if best is not None:
            best.offer(step, score, weights, is_first=step == steps.start)
        return {f"dev/{key}": value for key, value in values.items()} | {"dev/score": score}

    return Evaluation(steps, scores)
