"""LoRA beside samples that the untouched model writes (not registered), with the question H1 asks,
and chats.
"""

from collections.abc import Iterator

from study.third.cells import SEEDS, read
from study.third.picture import picture
from study.third.results import FOLDER, LANGUAGES, REPLAY, Results, cell_of, chats, interval, table

results, CHATS = Results(), chats()
QUESTION = "What is the capital of France?"
ROWS = (  # language, name, what differs from a cell of `lora`
    ("de", "LoRA", {"rate": 2e-3}),
    ("de", "LoRA, a fifth of English text", {"replay": 0.2}),
    ("de", "LoRA, self-generated replay", REPLAY),
    ("el", "LoRA, self-generated replay", REPLAY),
    ("tr", "LoRA, self-generated replay", REPLAY),
)


def tables() -> Iterator[str]:
    yield table(
        "with self-generated replay at 2e-3, three seeds | German | Greek | Turkish", seeds()
    )
    columns = (
        "language | what trains (seed 1) | rate | chats, bits per token lost | manual gained | "
        "English, less"
    )
    yield table(f"{columns} | {QUESTION}", answers())


def seeds() -> Iterator[str]:
    parts: list[list[str]] = [[], [], [], []]
    for language in LANGUAGES:
        own, plain = cell_of(language, "lora", **REPLAY), cell_of(language, "lora")
        gains, base = results.gains(own), results.gains(cell_of(language, "bl_base"))
        whole = results.gains(cell_of(language, "bl_base", 1.0))
        shares = [gains[seed] / whole[seed] for seed in SEEDS]
        parts[0].append(f"{', '.join(f'{share:.3f}' for share in shares)}; {interval(shares)}")
        parts[1].append(", ".join(f"{gains[seed] - base[seed]:.3f}" for seed in SEEDS))
        parts[2].append(results.less(own, plain))
        parts[3].append(results.saved(own, "en.manual"))
    names = (
        "share of the gain of embeddings alone with 100 %; mean and 95 % interval",
        "bits better than embeddings alone with 33 %",
        "bits of the manual better than LoRA at 4e-3 without it",
        "bits of English better than untouched",
    )
    yield from (f"{name} | {' | '.join(cells)}" for name, cells in zip(names, parts, strict=True))


def answers() -> Iterator[str]:
    said = {row["cell"]: row["answers"][QUESTION] for row in read(FOLDER / "chats.jsonl")}
    yield f"| untouched | | 0 | 0 | 0 | {said['untouched']}"
    for language, name, differs in ROWS:
        cell = cell_of(language, "lora", **differs)
        gain = results.gains(cell)[1]
        english = results.before["en.manual"] - results.each(cell, "en.manual")[1]
        answer = " ".join(said[cell.name].split())[:60]
        lost = CHATS[cell.name, 1.0]
        yield (
            f"{LANGUAGES[language]} | {name} | {cell.rate:g} | {lost:+.2f} | {gain:.3f} | "
            f"{english:+.3f} | {answer}"
        )


def drawing() -> str:
    curves = {}
    for language, name, differs in ROWS:
        cell = cell_of(language, "lora", **differs)
        label = name.replace("LoRA, ", "").replace(
            "self-generated replay", f"replay, {LANGUAGES[language]}"
        )
        curves[label] = [(CHATS[cell.name, 1.0], results.gains(cell)[1])]
    title = "Language gained against chats lost: LoRA with and without replay"
    return picture(
        title,
        "bits per token lost of the untouched model's chats",
        "bits per byte of the manual gained",
        curves,
    )
