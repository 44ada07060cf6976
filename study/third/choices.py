"""A task of the third study: which of four paragraphs follows the one before?

    python study/third/choices.py TEXT OUT

makes it of documents with an empty line between them, a paragraph a line: a question is up to 300
bytes of what stands before, the wrong options are paragraphs of other documents, next to the right
one in length. It prints how many questions there are, and what chance and words in common reach.
"""

import json
import random
import sys
from pathlib import Path

from ds_minimodel.common.files import atomic_write

OPTIONS, QUESTIONS = 4, 100  # the most of these
LEAST, MOST, BEFORE = 60, 300, 300  # bytes of a paragraph, and of what stands before it


def questions(documents: list[list[str]], draw: random.Random) -> list[dict]:
    paragraphs = [
        (number, place, line)
        for number, lines in enumerate(documents)
        for place, line in enumerate(lines)
        if place and LEAST <= len(line.encode()) <= MOST
    ]
    paragraphs.sort(key=lambda paragraph: len(paragraph[2].encode()))
    found = []
    for index, (number, place, line) in enumerate(paragraphs):
        near = sorted(range(len(paragraphs)), key=lambda other: abs(other - index))
        others = [paragraphs[other] for other in near]
        wrong = list(
            dict.fromkeys(text for other, _, text in others if other != number and text != line)
        )
        options = [line, *wrong[: OPTIONS - 1]]
        draw.shuffle(options)
        before = " ".join(documents[number][:place]).encode()[-BEFORE:].decode(errors="ignore")
        found.append({"question": before, "options": options, "answer": options.index(line)})
    return draw.sample(found, min(QUESTIONS, len(found)))


def by_words(question: dict) -> int:
    """The option with the largest share of words that stand before it, too."""
    before = set(question["question"].lower().split())
    return max(
        range(OPTIONS),
        key=lambda option: (
            len(before & (words := set(question["options"][option].lower().split()))) / len(words)
        ),
    )


def main(text: Path, out: Path) -> None:
    documents = [
        block.splitlines() for block in text.read_text("utf-8").split("\n\n") if block.strip()
    ]
    found = questions(documents, random.Random(0))
    with atomic_write(out) as file:
        file.write(
            "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in found).encode()
        )
    right = sum(by_words(question) == question["answer"] for question in found)
    print(
        f"{out}: {len(found)} questions; chance {1 / OPTIONS:.3f}, words in common "
        f"{right / len(found):.3f}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
