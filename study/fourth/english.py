"""The last part of the fourth study as a table: English at strength 1 by what is replayed.

    python -m study.fourth.english

A row of english.jsonl is a model: which of 500 English questions it answers right (a 1 each),
and its bits per byte of held-out pages.
"""

from pathlib import Path

from ds_minimodel.evaluation.comparison import QUESTIONS, Sample, points_lost
from study.fourth.screen import Row, read

LOG = Path(__file__).with_name("english.jsonl")


def lost(before: Row, after: Row) -> tuple[float, float]:
    """Return the points of right answers that were lost, and half of its interval of 95 %."""
    answers = [
        Sample(
            kind=QUESTIONS,
            opening="",
            before="",
            after="",
            was_right=former == "1",
            is_right=latter == "1",
        )
        for former, latter in zip(before["right"], after["right"], strict=True)
    ]
    return points_lost(answers)


def main() -> None:
    """Print the table."""
    untouched, *rows = read(LOG)
    gains: dict[str, float] = {}
    print("| language, arm | right, of 500 | points lost | language, bits | gain | English, bits |")
    print("|---|---|---|---|---|---|")
    right = untouched["right"].count("1")
    print(f"| untouched | {right} | | | | {untouched['bits']['en']:.3f} |")
    for row in rows:
        language = row["language"]
        bits = row["bits"][language]
        gain = untouched["bits"][language] - bits
        gains.setdefault(language, gain)
        points, half = lost(untouched, row)
        print(
            f"| {language}, {row['arm']} | {row['right'].count('1')} | {points:.1f} ± {half:.1f} | "
            f"{untouched['bits'][language]:.3f} → {bits:.3f} | {gain:.3f}, "
            f"{100 * gain / gains[language]:.0f} % | {row['bits']['en']:.3f} |"
        )


if __name__ == "__main__":
    main()
