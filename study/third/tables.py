"""The tables of the third study, from its raw scores.

    python -m study.third.tables screen     the best rate of every way in each round (screen.jsonl)
    python -m study.third.tables main       cells and verdicts (results.jsonl, clock.jsonl)
    python -m study.third.tables written    written.md, what models write (written.jsonl)
    python -m study.third.tables picture    gain_against_flops.svg and screen_gain.svg beside this file

Gain: in bits a byte of the manual, over the untouched model. What was not run is left out or said to be open.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from ds_minimodel.common.errors import escape_markdown
from study.third.cells import OLD, PIECES, REHEARSED
from study.third.picture import picture

LANGUAGES = {"de": "German", "el": "Greek", "tr": "Turkish"}
SHARES = {"0.125": "an eighth", "0.250": "a quarter", "0.333": "a third", "0.500": "a half", "1.000": "in full"}
VOCABULARIES = {  # by a cell's old, vocabulary
    (False, "extend"): "{:,} new",
    (False, "replace"): "{:,} in their place",
    (True, "extend"): f"{OLD} new",
}
ASKED = "chats.jsonl", "strength.jsonl"  # what has dialogues
SUMMARY = (  # name, kind, share, strength
    ("new rows alone (`bl_base`)", "bl_base", "0.333", 1.0),
    ("the same", "bl_base", "1.000", 1.0),
    ("all weights (`full`)", "full", "0.333", 1.0),
    ("LoRA over the old pieces (`lora-old`)", "lora-old", "0.333", 1.0),
    ("LoRA and new rows (`lora`)", "lora", "0.333", 1.0),
    ("the same with rehearsal (`lora-rehearsal`)", "lora-rehearsal", "0.333", 1.0),
    ("**what `extend` does**: constant rate, three quarters kept", "lora-rehearsal-constant", "0.333", 0.75),
)
LEAST = 0.99  # of BL_BASE's gain, by H1
MOST = 1.25  # of BL_BASE's seconds a FLOP, by H5
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


def table(columns: str, rows: Iterator[str]) -> None:
    print(f"| {columns} |", f"|{'---|' * (columns.count('|') + 1)}", *rows, sep="\n")


# --- the screen


def screen() -> None:
    rows = [row for row in read("screen.jsonl") if row["language"] == "el"]
    untouched = next(row for row in rows if not row["thousands"] and row["way"] == "lora")
    table(
        "way | FLOPs of | rates tried | best | steps | manual | gain, of BL_BASE's | English (64,000: 20 kB) | CPU s",
        ways(rows, untouched["manual"]),
    )
    print(f"\nUntouched: {untouched['manual']:.3f}; the rows as they begin: ", end="")
    print(f"{next(row['manual'] for row in rows if not row['thousands'] and row['way'] == 'whole'):.3f}.")


def best_of_ways(rows: list[Row]) -> dict[tuple[str, float], Row]:
    """{(way, thousand tokens): the row of the rate with the fewest bits of the manual}."""
    best: dict[tuple[str, float], Row] = {}
    for row in rows:
        if row["thousands"]:
            key = row["way"], row["thousands"]
            best[key] = min(best.get(key, row), row, key=lambda one: one["manual"])
    return best


def ways(rows: list[Row], untouched: float) -> Iterator[str]:
    best = best_of_ways(rows)
    whole = untouched - best["whole", 512]["manual"]
    for (way, thousands), row in sorted(best.items(), key=lambda pair: (pair[0][1], pair[1]["manual"])):
        tried = sorted(one["rate"] for one in rows if (one["way"], one["thousands"]) == (way, thousands))
        rates, gain = ", ".join(f"{rate:g}" for rate in tried), untouched - row["manual"]
        yield (
            f"| {way} | {thousands:g},000 | {rates} | {row['rate']:g} | {row['steps']} | {row['manual']:.3f} "
            f"| {gain:.3f}, {100 * gain / whole:.0f} % | {row['english']:.4f} | {row['cpu_seconds']:.0f} |"
        )


# --- the main part


class Cells:
    """The cells that were run, by what they are of: `bits(language, kind, share, seed)` and so on, None of others.

    kind: a system, "lora-old" (over the old pieces), "lora-replay", or with a vocabulary of another size at its end.
    """

    def __init__(self, rows: list[Row]) -> None:
        (self.untouched,) = (row for row in rows if row["cell"] == "untouched")
        self.before = self.untouched["bits_per_byte"]
        self.rows = [row for row in rows if "system" in row]
        self.right = {row["cell"].removesuffix("-mutual"): row["right"] for row in rows if "right" in row}
        # Of a kind that was tried at several rates in German, the one that was chosen by `help`.
        chosen: dict[tuple[Any, ...], Row] = {}
        for row in self.rows:
            key = (row["language"], kind_of(row), f"{row['share']:.3f}", row["seed"])
            help_bits = f"{row['language']}.help"
            if key not in chosen or row["bits_per_byte"][help_bits] < chosen[key]["bits_per_byte"][help_bits]:
                chosen[key] = row
        self.chosen = chosen

    def bits(self, language: str, kind: str, share: str, seed: int, text: str = "") -> float | None:
        if (language, kind, share, seed) not in self.chosen:
            return None
        return float(self.chosen[language, kind, share, seed]["bits_per_byte"][f"{text or language}.manual"])

    def gain(self, language: str, kind: str, share: str, seed: int) -> float | None:
        bits = self.bits(language, kind, share, seed)
        return None if bits is None else self.before[f"{language}.manual"] - bits

    def percent_kept(self, language: str, kind: str, share: str) -> float | None:
        """Percent of BL_BASE's gain in full, by means over the seeds that both have; None where they have none."""
        whole = "bl_base", "1.000"
        both = set(self.seeds(language, kind, share)) & set(self.seeds(language, *whole))
        gains = [[self.gain(language, *cell, seed) or 0 for seed in both] for cell in ((kind, share), whole)]
        return 100 * sum(gains[0]) / sum(gains[1]) if both else None

    def answers(self, cells: Iterable[str], language: str) -> str:
        """Percent of the questions whose right paragraph is chosen, by mutual information and by bits a byte."""
        asked = [self.right[cell][language] for cell in cells if cell in self.right]
        means = [fmean(one[kind] for one in asked) for kind in ("mutual_information", "score") if asked]
        return ", ".join(f"{mean:.0f} %" for mean in means)

    def seeds(self, language: str, kind: str, share: str) -> list[int]:
        return sorted(seed for *key, seed in self.chosen if key == [language, kind, share])


def kind_of(row: Row) -> str:
    kind = row["system"] + "-old" * row["old"]
    kind += "-rehearsal" if row.get("own") else "-replay" * (row["replay"] > 0)
    kind += f"-{row['rate']:g}" * bool(row.get("own") and row["rate"] != REHEARSED)
    kind += "-constant" * (row.get("schedule") == "constant")
    return f"{kind}-{row['vocabulary']}-{row['pieces']}" if row["pieces"] else kind


def rates(cells: Cells) -> Iterator[str]:
    german = [row for row in cells.rows if (row["language"], f"{row['share']:.3f}", row["seed"]) == ("de", "0.333", 1)]
    for kind in dict.fromkeys(map(kind_of, german)):
        tried = sorted((row["rate"], row["bits_per_byte"]["de.help"]) for row in german if kind_of(row) == kind)
        if len(tried) > 1:
            yield f"| {kind} | {', '.join(f'{rate:g}: {bits:.3f}' for rate, bits in tried)} |"


def scores(cells: Cells) -> Iterator[str]:
    for language, name in LANGUAGES.items():
        before = cells.before
        bits, of_style, english = (before[text] for text in (f"{language}.manual", f"{language}.help", "en.manual"))
        right = cells.answers(["untouched"], language)
        yield f"| {name} | untouched | | | | {bits:.3f} | {of_style:.3f} | 0 | | {english:.4f} | {right} |"
        found = dict.fromkeys((kind, share) for of, kind, share, _ in cells.chosen if of == language)
        for kind, share in sorted(found, key=lambda one: (one[1], one[0])):
            seeds = cells.seeds(language, kind, share)
            rows = [cells.chosen[language, kind, share, seed] for seed in seeds]
            after, of_style, english = (
                fmean(row["bits_per_byte"][text] for row in rows)
                for text in (f"{language}.manual", f"{language}.help", "en.manual")
            )
            kept = cells.percent_kept(language, kind, share)
            yield (
                f"| {name} | {kind} | {SHARES[share]} | {rows[0]['rate']:g} | {len(seeds)} "
                f"| {after:.3f} | {of_style:.3f} | {bits - after:.3f} | {'' if kept is None else f'{kept:.0f} %'} "
                f"| {english:.4f} | {cells.answers((row['cell'] for row in rows), language)} |"
            )


def lengths(cells: Cells) -> Iterator[str]:
    """Bytes a token of the manual, by which a context holds more and text is written sooner."""
    for language, name in LANGUAGES.items():
        text = f"{language}.manual"
        found = {"the model's own": cells.untouched}
        for row in cells.rows:
            if row["language"] == language:
                number = row["pieces"] or PIECES[language]
                found[VOCABULARIES[row["old"], row["vocabulary"]].format(number)] = row
        for vocabulary, row in found.items():
            yield f"| {name} | {vocabulary} | {row['bytes_per_token'][text]:.2f} |"


def verdict(name: str, asked: int, found: list[float | None], holds: Callable[[float], bool]) -> str:
    """found: of each seed, None where it was not run. asked: so many seeds are asked for."""
    there = [value for value in found if value is not None]
    right = sum(map(holds, there))
    if not right and len(there) == asked:
        said = "refuted"
    elif right == len(there) == asked:
        said = "confirmed"
    else:
        said = "open" if len(there) == asked else "unfinished"
    return f"| {name} | {', '.join(f'{value:.3f}' for value in there) or '–'} | {len(there)} of {asked} | {said} |"


def verdicts(cells: Cells) -> Iterator[str]:
    def less(language: str, seed: int, one: tuple[str, str], other: tuple[str, str], text: str = "") -> float | None:
        """By how many bits the first has fewer."""
        few, many = cells.bits(language, *one, seed, text), cells.bits(language, *other, seed, text)
        return None if few is None or many is None else many - few

    lora, third, whole = ("lora", "0.333"), ("bl_base", "0.333"), ("bl_base", "1.000")
    for language, name in LANGUAGES.items():
        for kind, gain_kept, is_better in ((lora, "H1", "H2"), (("lora-rehearsal", "0.333"), "gate 1", "gate 2")):
            kept = []
            for seed in (1, 2, 3):
                gain, of_base = (cells.gain(language, *cell, seed) for cell in (kind, whole))
                kept.append(gain / of_base if gain is not None and of_base else None)
            yield verdict(f"{gain_kept} {name}", 3, kept, lambda share: share >= LEAST)
            found = [less(language, seed, kind, third) for seed in (1, 2, 3)]
            yield verdict(f"{is_better} {name}", 3, found, lambda bits: bits > 0)
        for part, text in (("a", ""), ("b", "en")):
            found = [less(language, 1, lora, ("lora-old", "0.333"), text)]
            yield verdict(f"H3{part} {name}", 1, found, lambda bits: bits > 0)
        found = [less(language, 1, ("lora", share), ("bl_base", share)) for share in ("0.125", "0.250", "0.500")]
        there = [bits for bits in found if bits is not None]
        yield verdict(f"H4 {name}", 1, [min(there) if len(there) == len(found) else None], lambda bits: bits > 0)


def order(cells: Cells) -> Iterator[str]:
    """H6: the systems by a third, the best first, by means over seeds, in each language in which all were run."""
    for language, name in LANGUAGES.items():
        seeds = {kind: cells.seeds(language, kind, "0.333") for kind in ("bl_base", "full", "lora", "minipost")}
        if all(seeds.values()):
            means = {
                kind: fmean(cells.bits(language, kind, "0.333", one) or 0 for one in of) for kind, of in seeds.items()
            }
            yield f"| {name} | {', '.join(sorted(means, key=means.__getitem__))} |"


def dialogues() -> dict[tuple[str, float], float]:
    """{(cell, strength): bits a token that the untouched model's dialogues cost more than that model}."""
    rows = [(row["cell"], row.get("strength", 1.0), row["bits_per_token"]) for name in ASKED for row in read(name)]
    (untouched,) = (bits for cell, _, bits in rows if cell == "untouched")
    return {(cell, strength): bits - untouched for cell, strength, bits in rows}


def weakened(cells: Cells) -> dict[tuple[str, float], dict[str, float]]:
    """{(cell, strength): bits a byte by text} of those that were weakened, at full strength as well."""
    found = {(row["cell"], row["strength"]): row["bits_per_byte"] for row in read("strength.jsonl")}
    names = {cell for cell, _ in found}
    return {(row["cell"], 1.0): row["bits_per_byte"] for row in cells.rows if row["cell"] in names} | found


def strengths(cells: Cells) -> Iterator[str]:
    """What is left of the language and of the chat where a part is taken back."""
    lost, of = dialogues(), {row["cell"]: row for row in cells.rows}
    for (cell, strength), bits in sorted(weakened(cells).items(), key=lambda one: (one[0][0], -one[0][1])):
        row, language = of[cell], cell[:2]
        told = " | ".join(f"{bits[text]:.3f}" for text in (f"{language}.manual", f"{language}.help", "en.manual"))
        named = f"| {LANGUAGES[language]} | {kind_of(row)} | {row['rate']:g} | {row['seed']} | {strength:g} "
        yield f"{named}| {told} | {lost[cell, strength]:+.3f} |"


def summary(cells: Cells) -> Iterator[str]:
    """By each way bits of the manuals, means over seeds, and what the worst of the languages does to English."""
    before = (f"{cells.before[f'{language}.manual']:.3f}" for language in (*LANGUAGES, "en"))
    yield f"| untouched | | | {' | '.join(before)} | 0 |"
    lost, weak = dialogues(), weakened(cells)
    for name, kind, share, strength in SUMMARY:
        rows = [row for (_, *of, _), row in cells.chosen.items() if of == [kind, share]]
        bits: dict[str, list[dict[str, float]]] = {language: [] for language in LANGUAGES}
        for row in rows:
            found = row["bits_per_byte"] if strength == 1 else weak.get((row["cell"], strength))
            bits[row["language"]] += [found] if found else []
        own = [fmean(one[f"{language}.manual"] for one in of) if of else None for language, of in bits.items()]
        english = max(fmean(one["en.manual"] for one in of) for of in bits.values() if of)
        chat = [lost[row["cell"], strength] for row in rows if (row["cell"], strength) in lost]
        told = " | ".join("" if value is None else f"{value:.3f}" for value in (*own, english))
        yield f"| {name} | {SHARES[share]} | {rows[0]['rate']:g} | {told} | {f'{max(chat):+.2f}' if chat else ''} |"


def clock() -> Iterator[str]:
    """H5: seconds a FLOP, those of `lora` over those of BL_BASE, by each machine."""
    for row in read("clock.jsonl"):
        each = {system: fmean(row["seconds"][system]) / row["eflops"][system] for system in ("bl_base", "lora")}
        name = f"H5 {row['device']}, {row['threads']} thread, torch {row['torch']}, {row['date']}"
        yield verdict(name, 1, [each["lora"] / each["bl_base"]], lambda ratio: ratio <= MOST)


def written() -> None:
    print("# What the models write\n")
    print("The likeliest 40 tokens after openings and questions, by cells, named as in `results.jsonl`; written by")
    print("`python study/third/written.py runs/third`, on this page by `python -m study.third.tables written`.")
    rows = read("written.jsonl")
    for language, name in LANGUAGES.items():
        of_language = [row for row in rows if row["language"] == language]
        for kind in ("continued", "answers"):
            for prompt in of_language[0][kind] if of_language else ():
                print(f"\n**{prompt}** ({name})\n")
                for row in of_language:
                    print(f"- `{row['cell']}`: {escape_markdown(' '.join(row[kind][prompt].split()))}")


GAIN = "gain in bits over the untouched model, % of BL_BASE's in full"


def draw_screen() -> None:
    """Gain against FLOPs of ways of the screen, each at its best rate."""
    rows = [row for row in read("screen.jsonl") if row["language"] == "el"]
    untouched = next(row["manual"] for row in rows if not row["thousands"] and row["way"] == "lora")
    best = best_of_ways(rows)
    in_full = untouched - best["whole", 512]["manual"]
    names = {"lora-rows": "LoRA, new rows", "lora": "LoRA, old cut"}
    curves = {
        names.get(way, way): [
            (0.0, 0.0),
            *(
                (thousands / 5.12, 100 * (untouched - best[way, thousands]["manual"]) / in_full)
                for of, thousands in sorted(best)
                if of == way
            ),
        ]
        for way in ("whole", "lora-rows", "lora", "short-4+2", "forward")
    }
    drawn = picture(curves, "% of BL_BASE's in full", GAIN, 20)
    Path(__file__).with_name("screen_gain.svg").write_text(drawn, encoding="utf-8")


def draw() -> None:
    """Gain against FLOPs, as percent of BL_BASE's in full, the mean over languages in which that was run."""
    cells = Cells(read("results.jsonl"))
    languages = [name for name in LANGUAGES if cells.seeds(name, "bl_base", "1.000")]
    curves: dict[str, list[tuple[float, float]]] = {}
    for kind in ("bl_base", "lora", "lora-rehearsal", "full"):  # MiniPost is far below the untouched model
        points = [(0.0, 0.0)]
        for share in SHARES:
            kept = [cells.percent_kept(name, kind, share) for name in languages]
            there = [percent for percent in kept if percent is not None]
            if len(there) == len(languages):
                points.append((100 * float(share), fmean(there)))
        if len(points) > 1:
            curves[kind.replace("-rehearsal", " *")] = points  # room is short beside the picture
    drawn = picture(curves, "% of BL_BASE's in full", GAIN, 20)
    Path(__file__).with_name("gain_against_flops.svg").write_text(drawn, encoding="utf-8")
    draw_screen()


def main() -> None:
    cells = Cells(read("results.jsonl"))
    table(
        "what trains | FLOPs | rate | German | Greek | Turkish | English, at worst | dialogues, at worst",
        summary(cells),
    )
    print()
    table("system | rate: bits of German help by a third", rates(cells))
    print()
    table(
        "language | system | FLOPs | rate | seeds | manual | help | gain | of BL_BASE's in full | English | choices",
        scores(cells),
    )
    print()
    table("language | pieces | bytes a token of the manual", lengths(cells))
    print()
    table("claim | found | cells | verdict", itertools.chain(verdicts(cells), clock()))
    print()
    table("language | H6: the order by a third", order(cells))
    print()
    table("language | system | rate | seed | strength | manual | help | English manual | dialogues", strengths(cells))


if __name__ == "__main__":
    {"screen": screen, "main": main, "written": written, "picture": draw}[sys.argv[1]]()
