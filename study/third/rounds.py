"""The rounds of the screen: every way at its best rate by an eighth of the FLOPs, the better half by a half, two whole.

    python study/third/rounds.py FOLDER [ROUND…]

ROUND: untouched, first, second, third. What is in FOLDER/screen.jsonl is not run again, so it can be interrupted.
"""

import json
import subprocess
import sys
from pathlib import Path

FULL = 512  # thousand tokens of "BL_BASE in full"
LANGUAGE = "el"
# A way's rate is the best of three or more, of which no edge is the best, in its family; the others take it over.
FAMILIES = {
    "forward": ["tail", "head", "teacher"],
    "whole": ["apart"],
    "short-0": ["short-4+2", "short-2", "short-fit-4+2"],
    "lora": [],
    "lora-rows": [],
    "mini-4+2": [],
    "full": [],
    "mini-forward-4+2": [],
    "untied": [],
    "drawn": [],
    "mini-8+4": [],
}
FIRST_RATES = {"full": 1e-4, "lora": 2e-3}


class Screen:
    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self) -> list[dict]:
        log = self.folder / "screen.jsonl"
        return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []

    def bits(self, way: str, rate: float, thousands: float, seed: int = 1) -> float:
        """Bits a byte of the manual, by a run that is made where it is missing."""
        key = {"language": LANGUAGE, "way": way, "rate": rate, "thousands": thousands, "seed": seed}
        for attempt in range(2):
            for row in self.rows():
                if all(row[name] == value for name, value in key.items()):
                    return row["manual"]
            if not attempt:
                command = [sys.executable, str(Path(__file__).with_name("screen.py")), str(self.folder)]
                subprocess.run([*command, *map(str, key.values())], check=True)
        raise AssertionError(key)

    def best_rate(self, way: str, thousands: float) -> float:
        """The best of rates a factor of two apart, the two beside it tried as well."""
        rate = FIRST_RATES.get(way, 2e-3)
        while True:
            found = {other: self.bits(way, other, thousands) for other in (rate, rate * 2, rate / 2)}
            best = min(found, key=found.__getitem__)
            if best == rate:
                return rate
            rate = best

    def first(self) -> dict[str, tuple[float, float]]:
        """{way: (bits, rate)} of the first round."""
        found = {}
        for way, others in FAMILIES.items():
            rate = self.best_rate(way, FULL / 8)
            for member in (way, *others):
                found[member] = self.bits(member, rate, FULL / 8), rate
        return found


def main(folder: Path, rounds: list[str]) -> None:
    screen = Screen(folder)
    if "untouched" in rounds:
        for way in ("lora", "whole"):
            screen.bits(way, 1e-3, 0)
    if {"first", "second", "third"} & set(rounds):
        first = screen.first()
    if {"second", "third"} & set(rounds):
        better = sorted(first, key=lambda way: first[way][0])[: len(first) // 2]
        chosen = dict.fromkeys([*better, "whole", "lora"])
        second = {way: screen.bits(way, first[way][1], FULL / 2) for way in chosen}
    if "third" in rounds:
        best = sorted((way for way in second if way not in ("whole", "lora")), key=second.__getitem__)[:2]
        for way in dict.fromkeys([*best, "whole", "lora"]):
            screen.bits(way, first[way][1], FULL)


if __name__ == "__main__":
    folder, *rounds = sys.argv[1:]
    main(Path(folder), rounds or ["untouched", "first", "second", "third"])
