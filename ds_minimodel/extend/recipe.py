"""The recipe of a call of `extend`: what the options and the model decide, and sizes.

Rates, shares and samples of 128 tokens are those of the third study.
"""

import math
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.config.base import Base
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES
from ds_minimodel.extend.config import MIN_NEW_TOKENS, ExtendConfig
from ds_minimodel.launch.hosts import ranks_on_hosts
from ds_minimodel.training.config import WARM_UP

RECIPE_NAME = "the recipe of extend"  # in messages, before it is a file

# {whether a body is causal: the task by which it is scored}
SCORED_BY = {True: "bits-per-byte", False: "pseudo-likelihood"}
MAX_SCORED_TOKENS = 1024  # of a scored sample
HELD_OUT = 0.02  # share of the documents
MAX_PASSES = 4  # over the text, in a training by hours

SEQ_LENGTH = 128
MIN_STEPS = 10
# {most tokens of the whole training: sequences of a step}
BATCHES = {2_000_000: 8, 20_000_000: 32, 1 << 62: 128}
MIN_TEXT_TOKENS = min(BATCHES.values()) * SEQ_LENGTH

# A part is drawn of a large text: so many bytes at least, and so many for each token to train on.
MIN_DRAWN_BYTES = 5_000_000
DRAWN_BYTES_A_TOKEN = 20

TRIED_RANK = 16  # of LoRA
MAX_RANK = 256
# A weight of a LoRA stores two bits, and a token of text brings one (LoRA Without Regret).
BITS_A_WEIGHT = 2
# Power of a body's width with which its learning rate falls (LoRA Without Regret, for Llamas).
WIDTH_POWER = 0.78

# A training by hours begins with steps whose time decides its length. All sizes until then come
# from a guess of the FLOP/s.
GUESSED_FLOPS = {"cpu": 1e11, "cuda": 1e14}
WARM_STEPS = 5  # first steps, whose time does not count
TIMED_STEPS = 20
SPARE_STEPS = 5


class Tried(NamedTuple):
    """A model whose best learning rate was found; for other models and systems it is a guess.

    Attributes:
        width: Of its body.
        share: Its best rate as a share of the preset's.
        systems: That were tried.
    """

    width: int
    share: float
    systems: tuple[str, ...]


# {kind of body: model}: SmolLM2-135M (third study), Gemma 3 270M (benchmarks/rates.md).
TRIED = {
    "llama": Tried(576, 1.0, ("bl_base", "lora", "full")),
    "gemma3": Tried(640, 0.225, ("lora",)),
}


class Preset(NamedTuple):
    """Choices of --train.

    Attributes:
        system: That is trained.
        rate: Peak learning rate.
        replays: Whether a decoder replays what it writes itself.
    """

    system: str
    rate: float
    replays: bool = False


PRESETS = {
    "embeddings": Preset("bl_base", 4e-3),
    "lora": Preset("lora", 2e-3, replays=True),
    "all": Preset("full", 1e-4, replays=True),
}


def check_options(config: ExtendConfig, *, is_causal: bool) -> None:
    """Raise UserError for an option that has no meaning for such a model."""
    if not is_causal and config.test_text:
        raise UserError("--test-text: an encoder is scored on held-out text only; leave it out")
    if not is_causal and config.chats:
        raise UserError("--chats: an encoder does not answer; leave it out")
    system = SYSTEMS[_preset_of(config, is_causal=is_causal).system]
    if config.strength is not None and not system.trains:
        raise UserError(
            "--strength: only token embeddings train here, so there is no change of the body to "
            "merge; leave it out"
        )


def _preset_of(config: ExtendConfig, *, is_causal: bool) -> Preset:
    return PRESETS[config.train or ("lora" if is_causal else "embeddings")]


def first_values(config: ExtendConfig, base: Base, tokens: int) -> dict[str, Any]:
    """Return the recipe with the smallest sizes, which `set_sizes` replaces.

    Args:
        config: What the call asks for.
        base: Facts of the model.
        tokens: Most tokens to train on, here and in a longer training later. They decide how large
            a part of a large text is drawn.
    """
    preset = _preset_of(config, is_causal=base.config.causal)
    tried = TRIED.get(base.config.kind, TRIED["llama"])
    narrowing = min(1.0, tried.width / base.config.hidden_size)
    rate = preset.rate * tried.share * narrowing**WIDTH_POWER
    adapt: dict[str, Any] = {
        "steps": MIN_STEPS,
        "batch_size": min(BATCHES.values()),
        "seq_length": min(base.config.max_positions, SEQ_LENGTH),
        "lr": float(f"{rate:.2g}"),
        "schedule": "wsd",
        "warmup_steps": 1,
    }
    if not preset.replays and config.source_text:
        adapt["new_token_penalty"] = 10.0
    if preset.replays and base.config.causal:
        adapt |= {"replay": 0.1, "replay_from": "base"}
        if preset.system == "lora":
            adapt["replay_kl"] = 9.0
    if config.strength is not None:
        adapt["strength"] = config.strength

    data: dict[str, Any] = {
        "text": config.given_texts,
        "held_out": HELD_OUT,
        "column": config.column,
        "draw": max(MIN_DRAWN_BYTES, DRAWN_BYTES_A_TOKEN * tokens),
    }
    if config.chats:
        data["chats"] = {config.language: config.chats}
    values = values_of(
        config,
        system=preset.system,
        new_tokens=config.vocab_size or MIN_NEW_TOKENS,
        data=data,
        adapt=adapt,
    )
    task = SCORED_BY[base.config.causal]
    values["finetune"] = {"tasks": {task: _scoring(config, base)}}
    return values


def values_of(
    config: ExtendConfig,
    *,
    system: str,
    new_tokens: int,
    data: dict[str, Any],
    adapt: dict[str, Any],
) -> dict[str, Any]:
    """Return the recipe of a call without its tasks; `data` and `adapt` are sections of it."""
    return {
        "base": config.model,
        "workdir": str(config.folder / "run"),
        "systems": [system],
        "languages": {"source": config.source, "targets": [config.language]},
        "tokenizer": {"vocabulary": "extend", "vocab_size": new_tokens},
        "data": data,
        "optimizer": {"clip": 1.0, "weight_decay": 0.0},
        "adapt": adapt,
    }


def _scoring(config: ExtendConfig, base: Base) -> dict[str, Any]:
    """Return the task that scores held-out text, with a decoder in all languages that have some."""
    languages = list(config.given_texts)
    if not base.config.causal:
        languages = [name for name in languages if name in (config.source, config.language)]
    max_length = min(base.config.max_positions, MAX_SCORED_TOKENS)
    return {
        "kind": SCORED_BY[base.config.causal],
        "test": {name: str(config.folder / "test" / f"{name}.txt") for name in languages},
        # A token is at least a byte, and two tokens may stand around a text.
        "context_bytes": min(CONTEXT_BYTES, max_length - 2),
        "max_length": max_length,
    }


def guess_tokens(hours: float, base: Base, device: str) -> int:
    """Guess, generously, how many tokens train in some hours on a device, "cpu" or "cuda"."""
    # A forward and a backward pass through products of frozen weights.
    flops_a_token = 4 * 12 * base.config.num_layers * base.config.hidden_size**2
    return int(3600 * hours * GUESSED_FLOPS[device] / flops_a_token)


def count_ranks(config: ExtendConfig) -> int:
    """Return how many ranks a call trains with, on all of its hosts."""
    if config.hostfile:
        return ranks_on_hosts(config.hostfile, config.ranks)
    return config.ranks or 1


def batch_of(size: int, ranks: int) -> int:
    """Return the smallest batch of at least `size` sequences that ranks share equally.

    A rank's share is a multiple of four, if it is not smaller.
    """
    per_rank = -(-size // ranks)
    if per_rank >= 4:
        per_rank = -(-per_rank // 4) * 4
    return ranks * per_rank


def set_sizes(
    values: dict[str, Any],
    base: Base,
    *,
    tokens: int,
    text_tokens: int,
    seq_length: int,
    is_timed: bool,
    ranks: int = 1,
) -> list[str]:
    """Give a recipe its batch, its steps, and a LoRA rank high enough for that much text.

    Args:
        values: The recipe, whose section `adapt` is changed.
        base: Facts of the model.
        tokens: To train on in all, about.
        text_tokens: Of the text, which may be passed over more than once.
        seq_length: Tokens of a sample.
        is_timed: Whether the training begins with steps whose time decides its length.
        ranks: Count of ranks that share a batch.

    Returns:
        A line for each value that was not tried, or that the count of ranks changes.
    """
    size = next(size for limit, size in BATCHES.items() if tokens <= limit)
    batch = batch_of(size, ranks)
    steps = max(MIN_STEPS, tokens // (batch * seq_length))
    warmup = round(WARM_UP * steps)
    if is_timed:
        steps = WARM_STEPS + TIMED_STEPS + SPARE_STEPS
        warmup = min(warmup, TIMED_STEPS)
    adapt = values["adapt"]
    adapt |= {
        "seq_length": seq_length,
        "batch_size": batch,
        "steps": steps,
        "warmup_steps": warmup,
    }
    (system,) = values["systems"]
    if SYSTEMS[system].trains == "low-rank":
        # It brings torch.
        from ds_minimodel.models.low_rank import low_rank_size

        # The rank whose weights can store the text is rounded up to a power of two.
        weights_a_rank = low_rank_size(base.config, 1)
        min_rank = min(tokens, text_tokens) / (BITS_A_WEIGHT * weights_a_rank)
        power = math.ceil(math.log2(max(1, min_rank)))
        adapt["rank"] = min(MAX_RANK, max(TRIED_RANK, 2**power))

    untried: list[str] = []
    if batch != size:
        untried.append(
            f"a batch of {batch}, which {ranks} ranks share equally, instead of {size}: losses "
            "differ from those of one rank"
        )
    kind = base.config.kind
    width = base.config.hidden_size
    tried = TRIED.get(kind)
    if tried is None or tried.width != width or system not in tried.systems:
        untried.append(
            f"learning rate {adapt['lr']:g}: it was not tried in such a model ({kind}, {width:,} "
            f"wide, {system})"
        )
    rank = adapt.get("rank", TRIED_RANK)
    if rank != TRIED_RANK:
        untried.append(f"LoRA rank {rank}: it was not tried, and follows from the amount of text")
    return untried
