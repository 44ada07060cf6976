"""A contestant of a training step, as its own process has it: start one, take its steps, ask for
its peak memory.

ds_minimodel  the product: the engine's step around our module
compiled      the same with each layer under torch.compile
reference     the same with DSMM_OPS=reference, torch's operators in place of our kernels
hf            Hugging Face's model of the kind with scaled_dot_product_attention, as its
              documentation has it: autocast (fp16: with a gradient scaler) and torch's fused AdamW;
              adapt-lora, extend-lora: by peft
hf-untuned    the same without our settings of malloc and of threads (CPU)
hf-compiled   the same as hf under torch.compile; on the CPU with eager attention and our choice of
              MKL or oneDNN for fp32
hf-deepspeed  Hugging Face's model in our engine, and so under the same DeepSpeed configuration
"""

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from benchmarks.device import CLOCKS, synchronize
from benchmarks.workloads import (
    NUM_LABELS,
    TimedStep,
    make_batch,
    our_module,
    resolved_run,
    workload,
)
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.schema import Recipe
from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.hf.names import ARCHITECTURES
from ds_minimodel.ops.cpu import configure_cpu

Step = Callable[[int], torch.Tensor]  # number of the step -> its loss, still on the device
PEERS = ("compiled", "reference", "hf", "hf-untuned", "hf-compiled", "hf-deepspeed")
IN_ENGINE = (
    "ds_minimodel",
    "compiled",
    "reference",
    "hf-deepspeed",
)  # run on several ranks, with ZeRO
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trained:
    """What this process trains: a step of a workload, how many were taken, and what ends it."""

    def __init__(
        self, work: TimedStep, step: Step, end: Callable[[], object] = lambda: None
    ) -> None:
        self.work = work
        self.step = step
        self.end = end
        self.number = 0


_trained: Trained | None = None


def start(
    contestant: str,
    recipe: str,
    overrides: Sequence[str],
    precision: str,
    zero_stage: int,
    **sizes: Any,
) -> None:
    """Make what a contestant trains, in the place of what this process has trained so far.

    sizes: arguments of workloads.workload beside the recipe.
    """
    global _trained
    if _trained:
        _trained.end()
    engine = [
        f"engine.precision={precision}",
        f"engine.zero_stage={zero_stage}",
        "engine.micro_batch_size=1000000",
    ]
    loaded = load_recipe(recipe, [*overrides, *engine])
    _trained = _contestant(contestant, workload(loaded, **sizes), loaded)


def take_steps(count: int, clock: str) -> dict[str, float]:
    """Take so many optimizer steps: {"seconds", "loss"} of the last."""
    assert _trained, "start comes first"
    for _ in range(count):
        synchronize()
        start = CLOCKS[clock]()
        loss = _trained.step(_trained.number)
        synchronize()
        seconds = CLOCKS[clock]() - start
        _trained.number += 1
    return {"seconds": seconds, "loss": float(loss)}


def sizes() -> dict[str, float]:
    """Tokens and executed FLOPs of a step here, and bytes that this process has held at most, on a
    GPU its tensors.
    """
    assert _trained, "start comes first"
    on_gpu = torch.cuda.is_available()
    memory = (
        torch.cuda.max_memory_allocated()
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {
        "memory_bytes": memory,
        "tokens": _trained.work.tokens,
        "flops": _trained.work.cost().executed,
    }


def losses(count: int) -> list[float]:
    """Losses of so many steps, one after the other."""
    return [take_steps(1, "wall")["loss"] for _ in range(count)]


def profiled(count: int, rows: int = 25) -> str:
    """Kernels of so many steps, as a table of the longest, and how many a step launches."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        take_steps(count, "wall")
    found = profile.key_averages()
    launched = sum(one.count for one in found if str(one.device_type).endswith("CUDA")) / count
    key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return f"{launched:.0f} kernels and copies a step\n{found.table(sort_by=key, row_limit=rows)}"


def _contestant(name: str, work: TimedStep, recipe: Recipe) -> Trained:
    if name in ("ds_minimodel", "compiled", "reference"):
        module = our_module(work, recipe)
        if name == "compiled":
            torch._dynamo.config.allow_unspec_int_on_nn_module = (
                True  # one graph for all layers, whatever their sites
            )
            for layer in module.body.layers:
                vars(layer)["recomputing"] = lambda *_: nullcontext()  # hooks would cut the graph
                layer.compile()
        return _in_engine(module, work, recipe)
    if name == "hf-deepspeed":
        return _in_engine(_SummedLoss(hugging_face(work, recipe, "sdpa")), work, recipe)
    eager = name == "hf-compiled" and not torch.cuda.is_available()
    model = hugging_face(work, recipe, "eager" if eager else "sdpa")
    if name == "hf-compiled":
        if eager:
            configure_cpu()
        model.compile()
    return Trained(work, _as_documented(model, work, recipe))


def hugging_face(work: TimedStep, recipe: Recipe, attention: str) -> nn.Module:
    """Hugging Face's model of the same sizes, with the same part of it frozen; UserError for a kind
    that it lacks.
    """
    architectures = ARCHITECTURES.get(work.body.kind)
    if architectures is None:
        raise UserError(
            f"model.kind {work.body.kind}: Hugging Face's library has no such model to compare with"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    names = architectures[0]
    settings = {
        **names.config_json(work.body, work.vocab_size),
        "pad_token_id": 1,
        "num_labels": NUM_LABELS,
    }
    config = transformers.AutoConfig.for_model(**settings, attn_implementation=attention)
    finetune = work.name == "finetune"
    ending = "ForSequenceClassification" if finetune else recipe.trained_by.hugging_face_class
    kind = getattr(transformers, names.classes + ending)
    torch.manual_seed(recipe.seed)
    model = kind(config).train()
    if finetune:
        model.get_input_embeddings().requires_grad_(False)
        return model
    if work.rank:
        from peft import LoraConfig, get_peft_model

        new = {"embed_tokens": [*range(work.num_base, work.vocab_size)]} if work.num_base else None
        lora = LoraConfig(
            r=work.rank,
            lora_alpha=2 * work.rank,
            target_modules="all-linear",
            trainable_token_indices=new,
        )
        model = get_peft_model(model, lora)
        if new is None:
            model.get_input_embeddings().requires_grad_(True)
        return model
    with torch.device("meta"):
        ours = our_module(work, recipe)
    flags = {
        name: Lazy.of(torch.tensor([one.requires_grad]).expand(one.shape))
        for name, one in ours.named_parameters()
    }
    trained = names.to_hf(flags, work.body, names.language_model_head(work.body.num_layers))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(trained[name].read().any()))
    return model


def their_batch(batch: dict, finetune: bool) -> dict[str, torch.Tensor]:
    """Our batch in Hugging Face's terms."""
    tokens = batch["tokens"]
    if finetune:
        positions = torch.arange(tokens.shape[1])
        mask = (
            {"attention_mask": (positions < batch["lengths"][:, None]).long()}
            if "lengths" in batch
            else {}
        )
        return {"input_ids": tokens, "labels": batch["targets"][:, 0], **mask}
    if "loss_positions" not in batch:
        return {"input_ids": tokens, "labels": tokens}  # shifted by the model
    labels = torch.full_like(tokens, IGNORED).scatter(1, batch["loss_positions"], batch["targets"])
    return {"input_ids": tokens, "labels": labels}


class _SummedLoss(nn.Module):
    """Hugging Face's model as the engine wants it: `forward(batch)` gives the sum of losses,
    (1,).
    """

    loss_names = ["loss"]

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict) -> torch.Tensor:
        finetune = batch["targets"].shape[1] == 1
        mean = self.model(**their_batch(batch, finetune)).loss
        return (mean.float() * batch["targets"].numel())[None]


def _in_engine(module: nn.Module, work: TimedStep, recipe: Recipe) -> Trained:
    from ds_minimodel.training.loop import optimizer_step
    from ds_minimodel.training.world import join_ranks
    from ds_minimodel.training.zero.engine import build_engine, destroy

    world = join_ranks()
    run = resolved_run(work, recipe, world)
    engine = build_engine(module, run, world)

    def step(number: int) -> torch.Tensor:
        batch = make_batch(work, number * world.size + world.rank)
        (count,) = world.sum(batch["count"])  # as the loop does
        (sums,) = optimizer_step(engine, [batch], count, run, world, number)
        return sums.mean() / batch["count"]

    return Trained(work, step, lambda: destroy(engine))


def _as_documented(model: nn.Module, work: TimedStep, recipe: Recipe) -> Step:
    precision = recipe.engine.precision
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    rule = recipe.optimizer
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=recipe.adapt.lr,
        betas=rule.betas,
        eps=rule.eps,
        weight_decay=rule.weight_decay,
        fused=True,
    )
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def step(number: int) -> torch.Tensor:
        batch = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in their_batch(
                make_batch(work, number), work.name == "finetune"
            ).items()
        }
        with torch.autocast(device, AUTOCAST.get(precision), enabled=precision in AUTOCAST):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step
