"""Answers in the language that was added: to headings of held-out help pages, before, after, and
without `--chats`.

    python study/fourth/answers.py FOLDER [LANGUAGE…]     de and cs; a line of JSON each in FOLDER/answers.jsonl
    python study/fourth/answers.py FOLDER --table

FOLDER has `model` (a folder of transformers), and of `ds-minimodel fetch-sample --languages
en,de,cs --out FOLDER/sample` sample/ and debian-packages/. A section has three others beside it, of
pages of the same module and nearest in length. Three things apart: the right language (py3langid,
which has to be installed), the right topic (whether its section is likelier after the question than
after the three others' questions), the right content (whether what is generated is nearest to its
section, by chrF). THOUSANDS=60 of tokens train. What is there is not made again.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import py3langid
import torch
from screen import Row, add, command, read

from ds_minimodel.api import extend
from ds_minimodel.artifacts.base import module_of
from ds_minimodel.extend.generations import settings_of, written
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import asked
from ds_minimodel.ops.gpu import device
from ds_minimodel.report.kept import loops

THOUSANDS = int(os.environ.get("THOUSANDS", "60"))
NUMBER, OTHERS, TOKENS = 60, 3, 48  # sections; beside each; of an answer
ORDERS, BETA = range(1, 7), 2.0  # of chrF
WAYS = "untouched", "plain", "chats"
LOG = Path("answers.jsonl")


def pages(language: str) -> Iterator[tuple[str, set[str]]]:
    """(module, lines) of each page of LibreOffice's help."""
    for line in (
        Path(f"debian-packages/libreoffice-help-{language}.jsonl").read_text("utf-8").splitlines()
    ):
        page = json.loads(line)
        if page.get("language") == language:
            yield page["page"].partition("/")[0], set(page["lines"])


def items(language: str) -> list[tuple[str, list[str], list[str]]]:
    """(module, four questions, four sections), of each the right one first."""
    modules = {line: module for module, lines in pages(language) for line in lines}
    rows = map(
        json.loads, Path(f"sample/chats/{language}.test.jsonl").read_text("utf-8").splitlines()
    )
    every = [tuple(turn["content"] for turn in row["messages"]) for row in rows]
    named = [
        (modules[said.splitlines()[0]], ask, said)
        for ask, said in every
        if said.splitlines()[0] in modules
    ]
    found = []
    for module, ask, said in random.Random(0).sample(named, NUMBER):
        near = sorted(named, key=lambda one: abs(len(one[2]) - len(said)))
        beside = [(q, a) for own, q, a in near if own == module and q != ask and a != said][:OTHERS]
        if len(beside) == OTHERS:
            questions, sections = zip((ask, said), *beside, strict=True)
            found.append((module, list(questions), list(sections)))
    return found


def nats(module: Any, prompt: list[int], answer: list[int]) -> float:
    ids = torch.tensor([prompt + answer], device=module.device)
    with torch.inference_mode():
        logits = module(ids).logits[0, len(prompt) - 1 : -1].float()
        return float(
            torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :], reduction="sum")
        )


def chrf(said: str, reference: str) -> float:
    """Popović, WMT 2015: F of character n-grams, in percent."""
    scores, texts = [], ["".join(text.split()) for text in (said, reference)]
    for order in ORDERS:
        one, other = (
            Counter(text[at : at + order] for at in range(len(text) - order + 1)) for text in texts
        )
        same, sizes = (one & other).total(), (one.total(), other.total())
        if min(sizes):
            precision, recall = same / sizes[0], same / sizes[1]
            total = BETA**2 * precision + recall
            scores.append((1 + BETA**2) * precision * recall / total if total else 0.0)
    return 100 * float(np.mean(scores)) if scores else 0.0


def words_in_common(question: str, section: str) -> float:
    own = set(section.lower().split())
    return len(own & set(question.lower().split())) / len(own)


def first(values: Sequence[float]) -> bool:
    """Whether the right one is above all others."""
    return values[0] > max(values[1:])


def looked(folder: Path, language: str) -> dict[str, Any]:
    module, tokenizer = (
        module_of(str(folder), torch.float32).to(device()).eval(),
        tokenizer_of(folder),
    )
    found = items(language)

    def prompt(question: str) -> list[int]:
        said = asked(tokenizer, question, add_generation_prompt=True)
        assert said is not None, "a chat model has a template that takes a question"
        return list(tokenizer(said, add_special_tokens=False)["input_ids"])

    answers = written(
        module, [prompt(questions[0]) for _, questions, _ in found], settings_of(module), TOKENS
    )
    rows = []
    for (name, questions, sections), ids in zip(found, answers, strict=True):
        said = tokenizer.decode(ids, skip_special_tokens=True)
        beyond = said.replace(questions[0], "").strip()  # an echo is no answer
        own = tokenizer(sections[0], add_special_tokens=False)["input_ids"]
        by_section = [chrf(beyond, section) for section in sections]
        rows.append(
            {
                "module": name,
                "question": questions[0],
                "section": sections[0],
                "said": said,
                "in_language": len(beyond) >= 10 and py3langid.classify(beyond)[0] == language,
                "loops": loops(said),
                "ends": len(ids) < TOKENS,
                "likeliest": first(
                    [-nats(module, prompt(question), own) for question in questions]
                ),
                "words": first([words_in_common(question, sections[0]) for question in questions]),
                "chrf": by_section,
                "nearest": first(by_section),
            }
        )
    return {"rows": rows}


def model_of(way: str, language: str) -> Path:
    if way == "untouched":
        return Path("model")
    text, english, out = (
        f"sample/text/{language}.txt",
        "sample/text/en.txt",
        f"{way}-{language}-{THOUSANDS}",
    )
    chats = [f"sample/chats/{language}.jsonl"] if way == "chats" else []
    return extend(
        model="model",
        text=text,
        language=language,
        out=out,
        source_text=english,
        chats=chats,
        tokens=1000 * THOUSANDS,
    )


SHARES = {  # key of a row: what it says
    "in_language": "in the language",
    "loops": "loop",
    "ends": "end",
    "likeliest": "own question likeliest",
    "words": "the same by words in common",
    "nearest": "own section nearest",
}


def table(answered: list[Row]) -> Iterator[str]:
    """Shares in percent with their standard errors, and chrF with its own section less the mean of
    the others'.
    """
    yield f"| language | model | {' | '.join(SHARES.values())} | chrF, above the others |"
    yield "|---" * (3 + len(SHARES)) + "|"
    for row in answered:
        found = {
            name: np.array([one[name] for one in row["rows"]], float) for name in (*SHARES, "chrf")
        }
        above = found["chrf"][:, 0] - found["chrf"][:, 1:].mean(1)
        cells = [
            f"{100 * found[name].mean():.0f} ± {100 * error(found[name]):.0f}" for name in SHARES
        ]
        cells.append(f"{found['chrf'][:, 0].mean():.1f}, {above.mean():+.1f} ± {error(above):.1f}")
        yield f"| {row['language']} | {row['way']} | {' | '.join(cells)} |"


def error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    languages = command(__doc__ or "", "languages", LOG, table)
    for language, way in product(languages or ("de", "cs"), WAYS):
        key = {
            "language": language,
            "way": way,
            "thousands": THOUSANDS if way != "untouched" else 0,
        }
        if not any(key.items() <= row.items() for row in read(LOG)):
            add(LOG, key | looked(model_of(way, language), language))


if __name__ == "__main__":
    main()
