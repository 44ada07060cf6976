"""What the models of cells write in the new language, and how much of it repeats itself."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from ds_minimodel.evaluation.questions import loops
from ds_minimodel.report.render import escape_markdown
from study.third.cells import read
from study.third.picture import picture
from study.third.results import LANGUAGES, Results, Row, table

results = Results()
ROWS = read(Path(__file__).with_name("results.jsonl"))
KINDS = "continued", "answers"


def looped(row: Row) -> list[bool]:
    return [loops(text) for kind in KINDS for text in row[kind].values()]


def tables() -> Iterator[str]:
    yield table("language | cell | texts | repeat themselves | the first question's answer", rows())
    yield "\n\n".join(samples())


def rows() -> Iterator[str]:
    for row in ROWS:
        answer = escape_markdown(" ".join(next(iter(row["answers"].values())).split()))[:70]
        yield (
            f"{LANGUAGES[row['language']]} | `{row['cell']}` | {len(looped(row))} | "
            f"{sum(looped(row))} | {answer}"
        )


def samples() -> Iterator[str]:
    for language, name in LANGUAGES.items():
        of_language = [row for row in ROWS if row["language"] == language]
        for kind in KINDS:
            for prompt in of_language[0][kind]:
                yield f"**{prompt}** ({name})"
                yield "\n".join(
                    f"- `{row['cell']}`: {escape_markdown(' '.join(row[kind][prompt].split()))}"
                    for row in of_language
                )


def drawing() -> str:
    found: dict[str, list[tuple[float, float]]] = {
        "untouched": [],
        "embeddings alone": [],
        "LoRA": [],
    }
    for row in ROWS:
        name, text = row["cell"], f"{row['language']}.manual"
        kind = (
            "untouched" if name == "untouched" else "LoRA" if "lora" in name else "embeddings alone"
        )
        gain = (
            0.0
            if kind == "untouched"
            else results.before[text] - results.rows[name]["bits_per_byte"][text]
        )
        found[kind].append((gain, 100 * fmean(looped(row))))
    curves = {
        kind: [(fmean(gain for gain, _ in of), fmean(share for _, share in of))]
        for kind, of in found.items()
    }
    title = "Texts that repeat themselves, by what was gained, means over cells and languages"
    return picture(
        title, "bits per byte of the manual gained", "texts that repeat themselves, %", curves
    )
