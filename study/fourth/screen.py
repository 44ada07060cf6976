"""What the screen of the fourth study found: which arms keep more of a chat model while German is
added, at equal FLOPs.

It trained and measured at commit a4140b44, with measures that `extend` no longer has.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = "de.help", "de.manual", "en.manual", "cs.manual"
STRENGTHS = "1", "0.75", "0.5"
Row = dict[str, Any]


def read(log: Path) -> list[Row]:
    """Read the rows of a log; none where there is no file."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def gain(row: Row) -> float:
    """Bits per byte of German, mean of help and manual, that are saved."""
    return float(
        np.mean([row["texts"][name]["all"][0] - row["texts"][name]["all"][1] for name in TEXTS[:2]])
    )


def table(rows: list[Row]) -> Iterator[str]:
    own = [row for row in rows if row["arm"] == "default" and row["strength"] in STRENGTHS]
    line = sorted((row["chat"]["changed"][0], gain(row)) for row in own)
    changes, gains = zip((0.0, 0.0), *line, strict=True)
    yield (
        "| arm | strength | steps | gain, German | above the default's line | tokens that change, "
        "% | English by "
        "position, % | Czech, % | right before, after (lost) | begin alike |"
    )
    yield "|---" * 10 + "|"
    for row in rows:
        changed, error = row["chat"]["changed"]
        above = gain(row) - float(np.interp(changed, changes, gains))
        english = ", ".join(
            f"{rise[0]:+.1f}" for rise in row["texts"]["en.manual"]["rises"].values()
        )
        asked = row.get("answers")
        right = "{}, {} ({})".format(*asked["right"], asked["lost"]) if asked else ""
        alike = f"{100 * asked['alike'] / asked['asked']:.0f} %" if asked else ""
        czech = row["texts"]["cs.manual"]["rise"][0]
        yield (
            f"| {row['arm']} | {row['strength']} | {row['steps']} | {gain(row):.3f} | {above:+.3f} "
            "| "
            f"{changed:.1f} ± {error:.1f} | {english} | {czech:+.1f} | {right} | {alike} |"
        )
