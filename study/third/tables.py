"""The table of the screen, from its raw scores: study/third/screen.jsonl.

    python study/third/tables.py

prints the best rate of every way in each round. Gain: in bits a byte of the manual, over the untouched model.
"""

import json
from pathlib import Path
from typing import Any

ROWS = Path(__file__).with_name("screen.jsonl")


def main() -> None:
    rows = [row for row in map(json.loads, ROWS.read_text("utf-8").splitlines()) if row["language"] == "el"]
    untouched = next(row for row in rows if not row["thousands"] and row["way"] == "lora")
    print("| way | FLOPs of | rates tried | best | steps | manual | gain | English, first 20 kB | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for thousands in sorted({row["thousands"] for row in rows if row["thousands"]}):
        best: dict[str, dict[str, Any]] = {}
        tried: dict[str, list[float]] = {}
        for row in rows:
            if row["thousands"] == thousands:
                tried.setdefault(row["way"], []).append(row["rate"])
                best[row["way"]] = min(best.get(row["way"], row), row, key=lambda one: one["manual"])
        for way, row in sorted(best.items(), key=lambda pair: pair[1]["manual"]):
            rates = ", ".join(f"{rate:g}" for rate in sorted(tried[way]))
            print(
                f"| {way} | {thousands:g},000 | {rates} | {row['rate']:g} | {row['steps']} | {row['manual']:.3f} "
                f"| {untouched['manual'] - row['manual']:.3f} | {row['english']:.4f} | {row['cpu_seconds']:.0f} |"
            )
    print(f"\nUntouched: {untouched['manual']:.3f}; the rows as they begin: ", end="")
    print(f"{next(row['manual'] for row in rows if not row['thousands'] and row['way'] == 'whole'):.3f}.")


if __name__ == "__main__":
    main()
