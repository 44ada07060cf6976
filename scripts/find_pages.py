"""Ask English pages questions in another language, and show which pages are found before and after.

    python scripts/find_pages.py MODEL EXTENDED PAGES QUESTIONS

MODEL and EXTENDED are folders of sentence-transformers with mean pooling. PAGES is a text file with
a page's heading and its lines, and an empty line after it. QUESTIONS is a table of a question and
the heading of the page that answers it; those whose page this edition of the text lacks are left
out. The pages' vectors are those of MODEL for both, as in an index that was built before the
language was added.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

BATCH = 32
MAX_TOKENS = 128
PAGE_LETTERS = 600
MIN_LINES = 2  # of a page, under its heading
SHOWN = 5
SHOWN_LETTERS = 70


def vectors(folder: str, texts: list[str]) -> NDArray[np.float32]:
    """Return the normalised mean of each text's last states (texts, H)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    parts = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(
            texts[start : start + BATCH],
            max_length=MAX_TOKENS,
            padding=True,
            truncation=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = model(**batch).last_hidden_state  # (B, L, H)
        mask = batch["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        parts.append(torch.nn.functional.normalize(means).numpy())
    return np.concatenate(parts)


def read_pages(path: str) -> dict[str, str]:
    """Return {heading: page}; the first of equal headings counts.

    Single sentences that other pages show, and what has no heading, are no pages.
    """
    pages: dict[str, str] = {}
    for document in Path(path).read_text(encoding="utf-8").split("\n\n"):
        heading, *lines = document.strip().split("\n")
        if len(lines) >= MIN_LINES and heading[-1] not in ".:,;":
            pages.setdefault(heading, document[:PAGE_LETTERS])
    return pages


def main(model: str, extended: str, pages_file: str, questions_file: str) -> None:
    """Print each question with the pages that the two models find."""
    disable_progress_bar()
    pages = read_pages(pages_file)
    headings = [*pages]
    shown = [heading[:SHOWN_LETTERS] for heading in headings]
    with open(questions_file, encoding="utf-8", newline="") as file:
        asked = [row for row in csv.reader(file, delimiter="\t") if row]
    rows = [(question, heading) for question, heading in asked if heading in pages]
    if not rows:
        sys.exit(f"{pages_file}: it has no page that answers a question of {questions_file}")
    questions = [question for question, _ in rows]
    index = vectors(model, [*pages.values()])
    before = (vectors(model, questions) @ index.T).argmax(1)
    scores = vectors(extended, questions) @ index.T
    after = scores.argmax(1)
    right = 0
    right_before = 0
    among_three = 0
    for number, (question, expected) in enumerate(rows):
        found = headings[after[number]]
        found_before = headings[before[number]]
        right += found == expected
        right_before += found_before == expected
        among_three += headings.index(expected) in np.argsort(-scores[number])[:3]
        if number < SHOWN:
            mark = "right" if found == expected else f"wrong: {expected} answers it"
            print(f"  {question}\n    before: {shown[before[number]]}")
            print(f"    now:    {shown[after[number]]} ({mark})")
    print(
        f"{right} of {len(rows)} such questions find their page first among {len(pages)}, and "
        f"{among_three} among the first three; {right_before} before. The index of pages is the "
        "old one."
    )


if __name__ == "__main__":
    main(*sys.argv[1:5])
