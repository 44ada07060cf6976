"""LoRA beside new token embeddings alone, by compute: H1, H2, H4, H5 and H6 of registration.md."""

from collections.abc import Callable, Iterator
from statistics import fmean

from study.third.cells import SEEDS, THIRD, read
from study.third.picture import picture
from study.third.results import FOLDER, LANGUAGES, Results, cell_of, interval, percent, table

SHARES = 1 / 8, 1 / 4, THIRD, 1 / 2, 1.0
NAMES = {
    "bl_base": "new token embeddings",
    "lora": "LoRA and these",
    "full": "all weights and these",
    "minipost": "MiniPost, 4 + 2 of 30 layers",
}
LEAST, MOST = 0.99, 1.25  # of the gain of `bl_base`, by H1; of its seconds a FLOP, by H5
results = Results()


def tables() -> Iterator[str]:
    yield table("claim as registered | German | Greek | Turkish", verdicts())
    columns = (
        "bits per byte of the manual, means over seeds | compute | seeds | German | Greek | "
        "Turkish | English, worst"
    )
    yield table(columns, bits())


def verdicts() -> Iterator[str]:
    shares, leads = [], []
    for language in LANGUAGES:
        gains, whole = (
            results.gains(cell_of(language, "lora")),
            results.gains(cell_of(language, "bl_base", 1.0)),
        )
        base = results.gains(cell_of(language, "bl_base"))
        of_seeds = [gains[seed] / whole[seed] for seed in SEEDS]
        shares.append(
            f"{said(of_seeds, lambda share: share >= LEAST)}; mean and 95 % interval "
            f"{interval(of_seeds)}"
        )
        leads.append(said([gains[seed] - base[seed] for seed in SEEDS], lambda bits: bits > 0))
    yield f"H1: with 33 % it has {LEAST} of the gain of `bl_base` with 100 % | {' | '.join(shares)}"
    yield f"H2: with 33 % it is better than `bl_base` with 33 %, bits | {' | '.join(leads)}"
    ladder = (
        said([lead(language, share) for share in (1 / 8, 1 / 4, 1 / 2)], lambda bits: bits > 0)
        for language in LANGUAGES
    )
    yield f"H4 (one seed): its lead with 12.5, 25 and 50 %, bits | {' | '.join(ladder)}"
    (row,) = read(FOLDER / "lora/clock.jsonl")
    lora, base = (
        fmean(row["seconds"][system]) / row["eflops"][system] for system in ("lora", "bl_base")
    )
    clock = said([lora / base], lambda ratio: ratio <= MOST)
    yield f"H5: seconds a FLOP are at most {MOST} of those of `bl_base` | {clock} | | "
    orders = [order(language) for language in LANGUAGES]
    word = "confirmed" if len({*orders}) == 1 else "refuted"
    yield f"H6: the order with 33 % is the same in all three: {word} | {' | '.join(orders)}"


def lead(language: str, share: float) -> float:
    return (
        results.gains(cell_of(language, "lora", share))[1]
        - results.gains(cell_of(language, "bl_base", share))[1]
    )


def said(found: list[float], holds: Callable[[float], bool]) -> str:
    right = sum(map(holds, found))
    word = "refuted" if not right else "confirmed" if right == len(found) else "open"
    return f"{', '.join(f'{value:.3f}' for value in found)}: {word}"


def order(language: str) -> str:
    return ", ".join(
        sorted(
            ("lora", "full", "bl_base", "minipost"),
            key=lambda one: results.bits(cell_of(language, one)),
        )
    )


def bits() -> Iterator[str]:
    before = " | ".join(
        f"{results.before[text]:.3f}"
        for text in ("de.manual", "el.manual", "tr.manual", "en.manual")
    )
    yield f"untouched | | | {before}"
    for system, named in NAMES.items():
        for share in SHARES if system in ("bl_base", "lora") else [THIRD]:
            cells = [cell_of(language, system, share) for language in LANGUAGES]
            told = " | ".join(f"{results.bits(cell):.3f}" for cell in cells)
            worst = max(results.bits(cell, "en.manual") for cell in cells)
            yield (
                f"{named} | {percent(share)} | {len(results.each(cells[0]))} | {told} | {worst:.3f}"
            )


def kept(language: str, system: str, share: float) -> float:
    """Percent of the gain of `bl_base` with all the compute, by the seeds that both have."""
    gains, whole = (
        results.gains(cell_of(language, system, share)),
        results.gains(cell_of(language, "bl_base", 1.0)),
    )
    return 100 * sum(gains.values()) / sum(whole[seed] for seed in gains)


def drawing() -> str:
    curves = {}
    for system, named in (
        ("lora", "LoRA"),
        ("full", "all weights"),
        ("bl_base", "embeddings alone"),
    ):
        means = {
            share: fmean(kept(language, system, share) for language in LANGUAGES)
            for share in (SHARES if system != "full" else [THIRD])
        }
        curves[named] = [(0.0, 0.0), *((100 * share, mean) for share, mean in means.items())]
    title = "Gain by compute, mean of three languages"
    return picture(
        title, "compute, %", "gain, % of what embeddings alone gain with all the compute", curves
    )
