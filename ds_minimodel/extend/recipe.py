"""The recipe of a call of `extend`: what is the same for all, what the model decides, and sizes.

Rates, shares and samples of 128 tokens are those of the third study.
"""

import math
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.config.base import Base
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES
from ds_minimodel.extend.config import MIN_NEW_TOKENS, ExtendConfig
from ds_minimodel.training.config import WARM_UP

SCORED_BY = {True: "bits-per-byte", False: "pseudo-likelihood"}  # task, by whether a body is causal
MAX_SCORED_TOKENS = 1024  # of a scored sample
HELD_OUT = 0.02  # of the documents
MAX_PASSES = 4  # over the text, in a training by hours

SEQ_LENGTH = 128
MIN_STEPS = 10
# Sequences of a step, up to so many tokens of the whole training.
BATCHES = {2_000_000: 8, 20_000_000: 32, 1 << 62: 128}
MIN_TEXT_TOKENS = min(BATCHES.values()) * SEQ_LENGTH

# Of a text that is larger, a part is drawn: so many bytes at least, and for each token to train on.
MIN_DRAWN_BYTES = 5_000_000
DRAWN_BYTES_A_TOKEN = 20

TRIED_RANK = 16  # of LoRA
MAX_RANK = 256
BITS_A_WEIGHT = 2  # that a LoRA stores, where a token of text brings one (LoRA Without Regret)
WIDTH_POWER = 0.78  # by which a rate falls with a wider body (LoRA Without Regret, for Llamas)

# A training by hours begins with steps by whose time its length is set. Their own number, and all
# sizes until then, come from a guess of the FLOP/s.
GUESSED_FLOPS = {"cpu": 1e11, "cuda": 1e14}
WARM_STEPS = 5  # whose time does not count
TIMED_STEPS = 20
SPARE_STEPS = 5


class Tried(NamedTuple):
    """A model whose best rate was found: the width of its body, that rate as a share of a preset's,
    and for which systems. For others it is a guess.
    """

    width: int
    share: float
    systems: tuple[str, ...]


# By kind of body: SmolLM2-135M (third study), Gemma 3 270M (benchmarks/rates.md).
TRIED = {
    "llama": Tried(576, 1.0, ("bl_base", "lora", "full")),
    "gemma3": Tried(640, 0.225, ("lora",)),
}


class Preset(NamedTuple):
    """What --train chooses: system, rate, and whether a decoder replays what it writes itself."""

    system: str
    rate: float
    replays: bool = False


PRESETS = {
    "embeddings": Preset("bl_base", 4e-3),
    "lora": Preset("lora", 2e-3, replays=True),
    "all": Preset("full", 1e-4, replays=True),
}


def check_options(config: ExtendConfig, is_causal: bool) -> None:
    """Raise UserError for an option that has no meaning for such a model."""
    if not is_causal and config.test_text:
        raise UserError("--test-text: of an encoder held-out text alone is scored; leave it out")
    if not is_causal and config.chats:
        raise UserError("--chats: an encoder does not answer; leave it out")
    if config.strength is not None and not SYSTEMS[_preset_of(config, is_causal).system].trains:
        raise UserError(
            "--strength: only token embeddings train here, so there is no change of the body to "
            "merge; leave it out"
        )


def _preset_of(config: ExtendConfig, is_causal: bool) -> Preset:
    return PRESETS[config.train or ("lora" if is_causal else "embeddings")]


def first_values(config: ExtendConfig, base: Base, tokens: int) -> dict[str, Any]:
    """Return all of the recipe but its sizes, which `set_sizes` puts in the place of the smallest.

    Args:
        base: facts of the model.
        tokens: to train on at most, here and in a longer training later: by them a part of a large
            text is drawn.
    """
    preset = _preset_of(config, base.config.causal)
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

    given = {language: files for language, files in config.texts.items() if files}
    data: dict[str, Any] = {"text": given, "held_out": HELD_OUT, "column": config.column}
    data["draw"] = max(MIN_DRAWN_BYTES, DRAWN_BYTES_A_TOKEN * tokens)
    if config.chats:
        data["chats"] = {config.language: config.chats}
    return {
        "base": config.model,
        "workdir": str(config.folder / "run"),
        "systems": [preset.system],
        "languages": {"source": config.source, "targets": [config.language]},
        "tokenizer": {
            "vocabulary": "extend",
            "vocab_size": config.vocab_size or MIN_NEW_TOKENS,
        },
        "data": data,
        "optimizer": {"clip": 1.0, "weight_decay": 0.0},
        "adapt": adapt,
        "finetune": {"tasks": {SCORED_BY[base.config.causal]: _scoring(config, base, [*given])}},
    }


def _scoring(config: ExtendConfig, base: Base, languages: list[str]) -> dict[str, Any]:
    """Return the task that scores held-out text: a decoder's of each language that has some."""
    if not base.config.causal:
        languages = [name for name in languages if name in (config.source, config.language)]
    max_length = min(base.config.max_positions, MAX_SCORED_TOKENS)
    return {
        "kind": SCORED_BY[base.config.causal],
        "test": {name: str(config.folder / "test" / f"{name}.txt") for name in languages},
        # A token is a byte at least, and two may stand around a text.
        "context_bytes": min(CONTEXT_BYTES, max_length - 2),
        "max_length": max_length,
    }


def guess_tokens(hours: float, base: Base, device: str) -> int:
    """Guess, generously, how many tokens train in some hours on a device, "cpu" or "cuda"."""
    # Forward and back through products that are frozen.
    flops_a_token = 4 * 12 * base.config.num_layers * base.config.hidden_size**2
    return int(3600 * hours * GUESSED_FLOPS[device] / flops_a_token)


def batch_of(size: int, ranks: int) -> int:
    """Return the smallest batch of `size` sequences or more that ranks share equally, each a
    multiple of four from four on.
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
    """Give a recipe its batch, its steps and a LoRA rank that holds what they bring.

    Args:
        values: the recipe, whose section `adapt` is changed.
        base: facts of the model.
        tokens: to train on in all, about.
        text_tokens: of the text, which may be passed over more than once.
        seq_length: tokens of a sample.
        is_timed: whether the training begins with steps by whose time its length is set.
        ranks: which share a batch.

    Returns:
        A line for each value that was not tried, or that ranks change.
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
        from ds_minimodel.models.low_rank import low_rank_size  # with torch

        weights_a_rank = low_rank_size(base.config, 1)
        needed = min(tokens, text_tokens) / (BITS_A_WEIGHT * weights_a_rank)
        power = math.ceil(math.log2(max(1, needed)))
        adapt["rank"] = min(MAX_RANK, max(TRIED_RANK, 1 << power))

    untried: list[str] = []
    if batch != size:
        untried.append(
            f"batch of {batch}, which {ranks} ranks share equally, in place of {size}: losses "
            "differ from those of one rank"
        )
    kind = base.config.kind
    width = base.config.hidden_size
    tried = TRIED.get(kind)
    if tried is None or tried.width != width or system not in tried.systems:
        untried.append(
            f"rate {adapt['lr']:g}: not tried in such a model ({kind}, {width:,} wide, {system})"
        )
    rank = adapt.get("rank", TRIED_RANK)
    if rank != TRIED_RANK:
        untried.append(f"rank {rank}: not tried; it was chosen by the amount of text")
    return untried
