"""The recipe by which `extend` adds a language to a model: what is the same for all, and what the
model's size decides.

Rates, shares and samples of 128 tokens are those of the third study.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.config.base import Base
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.training.config import WARM_UP

SCORED_BY = {True: "bits-per-byte", False: "pseudo-likelihood"}  # task, by whether a body is causal
CONTEXT = 600  # bytes, in which held-out text is scored
HELD_OUT = 0.02  # of the documents
MOST_PASSES = 4  # over the text
LENGTH, FEWEST_STEPS = 128, 10
BATCHES = {
    2_000_000: 8,
    20_000_000: 32,
    1 << 62: 128,
}  # sequences of a step, up to so many tokens in all
FEWEST_TOKENS = min(BATCHES.values()) * LENGTH  # of the text
MIN_NEW_TOKENS = 6  # as good as none
FEW_TOKENS = (
    100_000  # to train on, with which new ones beside a body that trains do not pay (fourth study)
)
FEWEST_BYTES, BYTES_A_TOKEN = 5_000_000, 20  # of text to draw: at least; for each token to train on

RANK, MOST_RANK = 16, 256  # of LoRA; the first was tried
BITS = 2  # that a weight of a LoRA stores, where a token of text brings one (LoRA Without Regret)
FALL = 0.78  # a rate falls with a greater width to this power (LoRA Without Regret, for Llamas)
GUESSED_FLOPS = {
    "cpu": 1e11,
    "cuda": 1e14,
}  # FLOP/s that a training by hours is sized with before steps are timed
TIMED, UNTIMED = (
    20,
    5,
)  # steps by whose time a training by hours gets its length, after so many that do not count


class Tried(NamedTuple):
    """A model whose best rate was found: width of its body, that rate as a share of a preset's, and
    for which systems. For others it is a guess.
    """

    width: int
    share: float
    systems: tuple[str, ...]


# by kind of body: SmolLM2-135M (third study), Gemma 3 270M (benchmarks/rates.md)
TRIED = {
    "llama": Tried(576, 1.0, ("bl_base", "lora", "full")),
    "gemma3": Tried(640, 0.225, ("lora",)),
}


class Preset(NamedTuple):
    """What --train chooses: system, rate, and keys of `adapt` that protect the source: with its
    text, of decoders.
    """

    system: str
    rate: float
    by_text: dict[str, Any] = {}
    of_decoders: dict[str, Any] = {}


REPLAYS_OWN = {"replay": 0.1, "replay_from": "base"}
PRESETS = {
    "embeddings": Preset("bl_base", 4e-3, by_text={"new_token_penalty": 10.0}),
    "lora": Preset("lora", 2e-3, of_decoders=REPLAYS_OWN | {"replay_kl": 9.0}),
    "all": Preset("full", 1e-4, of_decoders=REPLAYS_OWN),
}


def first_values(
    model: str,
    base: Base,
    out: Path,
    languages: tuple[str, str],
    text: Mapping[str, Sequence[str]],
    trains: str | None = None,
    strength: float | None = None,
    **data: Any,
) -> dict[str, Any]:
    """The values of a recipe that adds the second of `languages` to a model that knows the first,
    but for its sizes.

    text: of each language, as of `data.text`. data: further keys of that section. UserError for a
    strength where no body trains.
    """
    preset = PRESETS[trains or ("lora" if base.config.causal else "embeddings")]
    if strength is not None and not SYSTEMS[preset.system].trains:
        raise UserError(
            "--strength: only token embeddings train here, so there is no change of the body to "
            "merge; leave it out"
        )
    tried = TRIED.get(base.config.kind, TRIED["llama"])
    rate = preset.rate * tried.share * min(1.0, tried.width / base.config.hidden_size) ** FALL
    given = {name: [*files] for name, files in text.items() if files}
    longest = min(base.config.max_positions, 1024)
    task = {
        "kind": SCORED_BY[base.config.causal],
        "test": {
            name: str(out / "test" / f"{name}.txt")
            for name in given
            if base.config.causal or name in languages
        },
        "context_bytes": min(
            CONTEXT, longest - 2
        ),  # a token is a byte at least, and two may stand around
        "max_length": longest,
    }
    return {
        "base": model,
        "workdir": str(out / "run"),
        "systems": [preset.system],
        "languages": {"source": languages[0], "targets": [languages[1]]},
        "tokenizer": {"vocabulary": "extend", "vocab_size": MIN_NEW_TOKENS},
        "data": {"text": given, "held_out": HELD_OUT, **data},
        "optimizer": {"clip": 1.0, "weight_decay": 0.0},
        "adapt": {
            "steps": FEWEST_STEPS,
            "batch_size": min(BATCHES.values()),
            "seq_length": min(base.config.max_positions, LENGTH),
            "lr": float(f"{rate:.2g}"),
            "schedule": "wsd",
            "warmup_steps": 1,
            **(preset.by_text if languages[0] in given else {}),
            **(preset.of_decoders if base.config.causal else {}),
            **({} if strength is None else {"strength": strength}),
        },
        "finetune": {"tasks": {task["kind"]: task}},
    }


def tokens_in(hours: float, base: Base, device: str) -> int:
    """A generous estimate of how many tokens train in so much time on a "cpu" or "cuda"."""
    a_token = (
        4 * 12 * base.config.num_layers * base.config.hidden_size**2
    )  # forward and back through frozen products
    return int(3600 * hours * GUESSED_FLOPS[device] / a_token)


def bytes_to_draw(tokens: int) -> int:
    """Bytes of text that a training on so many tokens, and a longer one after it, draws from a
    larger text.
    """
    return max(FEWEST_BYTES, BYTES_A_TOKEN * tokens)


def batch_of(size: int, ranks: int) -> int:
    """The smallest batch of `size` sequences or more that ranks share equally, each a multiple of
    four from four on.
    """
    own = -(-size // ranks)
    return ranks * (own if own < 4 else -(-own // 4) * 4)


def set_sizes(
    values: dict[str, Any],
    base: Base,
    tokens: int,
    text: int,
    length: int,
    timed: bool,
    ranks: int = 1,
) -> list[str]:
    """Give a recipe its samples of `length` tokens, steps for about so many tokens in all, and a
    rank that holds them; return a line for each value that was not tried.

    text: tokens of the text, which may be passed over again. timed: whether the training begins
    with steps by whose time its length is set.
    """
    batch = batch_of(next(size for limit, size in BATCHES.items() if tokens <= limit), ranks)
    steps = max(FEWEST_STEPS, tokens // (batch * length))
    warmup = round(WARM_UP * steps)
    if timed:
        steps = TIMED + UNTIMED + 5
        warmup = min(warmup, TIMED)
    values["adapt"] |= {
        "seq_length": length,
        "batch_size": batch,
        "steps": steps,
        "warmup_steps": warmup,
    }
    if SYSTEMS[values["systems"][0]].trains == "low-rank":
        from ds_minimodel.models.low_rank import low_rank_size  # with torch

        needed = min(tokens, text) / (BITS * low_rank_size(base.config, 1))
        values["adapt"]["rank"] = min(
            MOST_RANK, max(RANK, 1 << math.ceil(math.log2(max(1, needed))))
        )
    untried, kind, width = list[str](), base.config.kind, base.config.hidden_size
    rank = values["adapt"].get("rank", RANK)
    tried, (system,) = TRIED.get(kind), values["systems"]
    if tried is None or tried.width != width or system not in tried.systems:
        untried.append(
            f"rate {values['adapt']['lr']:g}: not tried in such a model ({kind}, {width:,} wide, "
            f"{system})"
        )
    if rank != RANK:
        untried.append(f"rank {rank}: not tried; it was chosen by the amount of text")
    return untried
