"""What a decoder keeps when a language is added, and the merge strength that keeps enough.

Measured: right answers to questions, the likeliest tokens of its own answers, bits of text by
position, bits of other text. An adaptation is an update of a base, so that one training is measured
at several strengths.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ds_minimodel.artifacts.adaptation import load_adaptation, whole
from ds_minimodel.artifacts.base import module_of
from ds_minimodel.artifacts.models import identity, load_model
from ds_minimodel.common.files import Amount, Stored, read_model, sha256_of_json, write_json
from ds_minimodel.common.memory import trim
from ds_minimodel.export.folder import exported
from ds_minimodel.extend.generations import continued, settings_of, shared_prefix, written
from ds_minimodel.extend.questions import (
    COUNT,
    Question,
    begins_alike,
    question_set,
    rules_of,
    spoken,
)
from ds_minimodel.hf.lazy import lazily
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.tokenizers import ends_of
from ds_minimodel.hf.vocabularies import asked
from ds_minimodel.ops.gpu import device
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.report.kept import Kept, Measure, Sample, loops
from ds_minimodel.report.verdict import FORGETS
from ds_minimodel.text.chats import Dialogue
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer

STRENGTHS = 1.0, 0.75, 0.5  # that are tried, up to the first that keeps enough
MOST_LOST = 5.0  # points of right answers that a strength may cost
FEWEST_TO_CHOOSE = 100  # questions by which a strength is chosen
# What is warned of: points of right answers, percent of likeliest tokens, and of bits
WORSE = {"answers": MOST_LOST, "chat": 13.0, "contexts": 1.0, "texts": 3.0}
ANSWER_TOKENS = 32  # of an answer
EDGES, LENGTH = (0, 128, 512), 1024  # tokens at which positions part; of a window
TEXT_BYTES = 30_000  # of each text
TOKENS_AT_ONCE, SCORES_AT_ONCE = 1024, 25_000_000  # tokens of a forward pass, and logits
FP32_BELOW = 400_000_000  # weights of a body, which are in fp32 on a CPU
SHOWN, CHATS = 10, 30  # answers; questions of dialogues that are asked
OPENINGS, WORDS, CHARACTERS = (
    5,
    6,
    60,
)  # of held-out documents, that samples continue; at most so many
PAGES = "held-out pages of your text"
UNTOUCHED = "the-untouched.json"  # beside files of languages
ONE_SIDED, TWO_SIDED = 1.645, 1.96  # standard errors of 95 %, of many
FEWEST = 3  # windows of a text that reach a position, by which it is judged
_BITS = "bits per byte"


class Change(NamedTuple):
    """How much worse something has become, in percent, the standard error of that, and of how many
    drawn things.
    """

    percent: float
    error: float
    number: int

    @classmethod
    def of(cls, changes: np.ndarray, sizes: np.ndarray) -> Change:
        """The ratio sum(changes) / sum(sizes) over a sample of answers or windows of a text, with
        its standard error; both (N,).
        """
        changes, sizes = changes[sizes > 0], sizes[sizes > 0]
        share, number = changes.sum() / sizes.sum(), len(changes)
        error = (
            math.sqrt(((changes - share * sizes) ** 2).sum() * number / max(1, number - 1))
            / sizes.sum()
        )
        return cls(100 * float(share), 100 * float(error), number)

    def bound(self, errors: float = ONE_SIDED) -> float:
        """The upper bound at so many standard errors, of many; of few Student's t takes more
        (Cornish and Fisher). Of fewer than FEWEST there is none, and the percentage itself stands
        for it.
        """
        if self.number < FEWEST:
            return self.percent
        few = 1 / max(1, self.number - 1)
        more = 1 + (errors**2 + 1) * few / 4 + (5 * errors**4 + 16 * errors**2 + 3) * few**2 / 96
        return self.percent + errors * more * self.error


class Untouched(Stored):
    """Cache of what the untouched model does. answers: ids, a list a prompt; bits: of each answer.
    edges: per text and window, the byte offsets of EDGES; windows: bits between these, (windows,
    bins). settings: of generation. samples: continuations of the openings, written at
    bytes_a_second. chats: its answers to these.
    """

    key: str
    answers: list[list[int]]
    bits: list[float]
    edges: dict[str, list[list[int]]]
    windows: dict[str, list[list[float]]]
    settings: dict[str, Any]
    samples: list[str]
    bytes_a_second: Amount
    chats: list[str]


@dataclass(frozen=True)
class Prompt:
    """What is asked, its ids up to where an answer begins, and whether the answer may choose a
    strength.
    """

    question: Question | None
    prompt: list[int]
    chooses: bool


class Comparison:
    """A decoder before and after an adaptation, which is in memory at one strength after the other.

    model, tokenizer: folders of the untouched one and its vocabulary, whose ids the adaptation in
    `pack` keeps. texts: {name: file}. memory: cache file of what the untouched model does, with a
    hash of its inputs. seed, count: of the questions, in the language `source` where there are
    such. openings: beginnings of texts to continue. chats: dialogues in the added language, up to
    an answer.
    """

    def __init__(
        self,
        model: Path,
        tokenizer: Path,
        pack: Path,
        texts: Mapping[str, str],
        memory: Path,
        column: str = "text",
        seed: int = 0,
        openings: Sequence[str] = (),
        chats: Sequence[Dialogue] = (),
        source: str = "en",
        count: int = COUNT,
    ):
        self.model, (self.body, self.base) = model, load_model(model)
        self.added, self.new = load_adaptation(pack, self.body.space), open_tokenizer(pack)
        self.theirs, self.after, old = (
            tokenizer_of(tokenizer),
            tokenizer_of(pack),
            open_tokenizer(tokenizer),
        )
        own = whole(self.added, self.base)
        self._exported = functools.partial(exported, model, self.body, own, self.new.vocabulary)
        positions = self.body.config.max_positions
        self.asked = question_set(source, seed, count)
        self.dialogues = [
            own for own in self._prompts() if len(own.prompt) + ANSWER_TOKENS <= positions
        ]
        self.length = min(LENGTH, positions - 1)
        self.windows = {
            name: windows_of(old, path, self.length, column) for name, path in texts.items()
        }
        self.openings, prompts = openings, [own.prompt for own in self.dialogues]
        self.chats = [
            own for own in chats if len(self._prompt(self.theirs, own)) + ANSWER_TOKENS <= positions
        ]
        self.ends = ends_of(pack)
        how = ANSWER_TOKENS, EDGES, str(self.dtype), self.ends
        key = sha256_of_json([identity(model), how, prompts, self.windows, [*openings], self.chats])
        known = read_model(memory, Untouched, "delete that file") if memory.exists() else None
        self.is_fresh = False  # another time's speed is no measure
        if known is None or known.key != key:
            known, self.is_fresh = self._look(key, prompts, old), True
            trim()  # its module, before there is another
            write_json(memory, known.model_dump())
        self.untouched = known

    def _prompts(self) -> Iterator[Prompt]:
        all_asked: list[tuple[str, Question | None, bool]] = []
        all_asked += [
            (own.text, own, half == 0)
            for half, some in enumerate(self.asked.halves)
            for own in some
        ]
        all_asked += [
            (text, None, place % 2 == 0) for place, text in enumerate(self.asked.instructions)
        ]
        for text, question, chooses in all_asked:
            yield Prompt(question, self._prompt(self.theirs, text), chooses)

    def _prompt(self, tokenizer: Any, question: str | Dialogue) -> list[int]:
        """Ids of what is asked, up to where an answer begins."""
        dialogue = asked(tokenizer, question, add_generation_prompt=True)
        if dialogue is None:
            text = question if isinstance(question, str) else question[-1]["content"]
            return list(tokenizer(text.join(self.asked.frame))["input_ids"])
        return list(tokenizer(dialogue, add_special_tokens=False)["input_ids"])

    def _text_of(self, tokenizer: Any, ids: list[int]) -> str:
        """The text of an answer, cut off where a decoder without a chat template goes on with a
        next question.
        """
        text, following = (
            tokenizer.decode(ids, skip_special_tokens=True),
            self.asked.frame[0].strip(),
        )
        return str(text).partition(f"\n{following}")[0].strip()

    def _look(self, key: str, prompts: list[list[int]], old: Tokenizer) -> Untouched:
        module = module_of(self.model, self.dtype).to(device())
        settings = settings_of(module, self.ends)
        answers = written(module, prompts, settings, ANSWER_TOKENS)
        bits = _read_again(module, prompts, answers)[:, 1].tolist()
        edges = {name: [_edges(old, text) for text in own] for name, own in self.windows.items()}
        windows = {
            name: bits_between(module, old, own, edges[name]).tolist()
            for name, own in self.windows.items()
        }
        samples, speed = continued(module, self.theirs, self.openings, settings)
        looked: dict[str, Any] = {
            "edges": edges,
            "windows": windows,
            "samples": samples,
            "bytes_a_second": speed,
        }
        chats = self._texts_to_chats(module, self.theirs, settings)
        return Untouched(
            key=key, answers=answers, bits=bits, settings=settings, chats=chats, **looked
        )

    def _texts_to_chats(
        self, module: Any, tokenizer: Any, settings: Mapping[str, Any]
    ) -> list[str]:
        ids = written(
            module, [self._prompt(tokenizer, own) for own in self.chats], settings, ANSWER_TOKENS
        )
        return [self._text_of(tokenizer, own) for own in ids]

    @property
    def dtype(self) -> torch.dtype:
        """Of weights: on a CPU fp32, which rounds least, of a small model or where bf16 is slow."""
        size = sum(math.prod(lazy.shape) for lazy in lazily(self.body.tensors).values())
        if device().type == "cpu" and (
            size < FP32_BELOW or resolve_precision("auto", device()) == "fp32"
        ):
            return torch.float32
        return lazily(self.base.embeddings)["tokens"].dtype

    @functools.cached_property
    def module(self) -> Any:
        """transformers' own, at full strength to begin with."""
        module = self._exported().module(self.dtype).to(device()).eval()
        module.generation_config.update(**self.untouched.settings)
        return module

    def put(self, strength: float) -> None:
        """Load into the module the weights at this merge strength."""
        there = self.module.state_dict()
        for name, tensor in self._exported(strength=strength).tensors.items():
            there[name].copy_(tensor)

    def answers(self, index: Sequence[int]) -> list[Sample]:
        """Answers before and after to those of the prompts `index` that are questions with a known
        answer.
        """
        chosen = [(at, question) for at in index if (question := self.dialogues[at].question)]
        prompts = [self.dialogues[at].prompt for at, _ in chosen]
        after = written(self.module, prompts, self.untouched.settings, ANSWER_TOKENS)
        samples = []
        for (at, question), own in zip(chosen, after, strict=True):
            texts = [self._text_of(self.after, ids) for ids in (self.untouched.answers[at], own)]
            right = zip(("was_right", "is_right"), map(question.is_right, texts), strict=True)
            samples.append(
                Sample(opening=question.text, before=texts[0], after=texts[1], **dict(right))
            )
        return samples

    def chat(self, index: Sequence[int]) -> tuple[Change, float, float]:
        """(share of likeliest tokens that changed, bits per token before, after) over the untouched
        model's answers to the prompts `index`.
        """
        own = [self.untouched.answers[at] for at in index]
        changed, bits = _read_again(self.module, [self.dialogues[at].prompt for at in index], own).T
        sizes = np.array([len(answer) for answer in own])
        before = sum(self.untouched.bits[at] for at in index)
        return Change.of(changed, sizes), before / sizes.sum(), bits.sum() / sizes.sum()

    def answers_to_chats(self) -> list[Sample]:
        """Before and after."""
        after = self._texts_to_chats(self.module, self.after, self.untouched.settings)
        return _side_by_side(
            [turns[-1]["content"] for turns in self.chats], self.untouched.chats, after
        )

    def samples(self) -> tuple[list[Sample], list[Measure]]:
        """Continued openings, and how fast they are written."""
        texts, speed = continued(self.module, self.after, self.openings, self.untouched.settings)
        both = {"before": self.untouched.bytes_a_second, "after": speed}
        measure = Measure(what="how fast it writes", unit="bytes a second", **both, decimals=0)
        samples = _side_by_side(self.openings, self.untouched.samples, texts)
        return samples, [measure] * (self.is_fresh and bool(samples))

    def bits(self, name: str) -> Bits:
        """Bits of a text by position, before and after."""
        edges, windows = self.untouched.edges[name], self.windows[name]
        sizes = np.diff(
            [[*own, len(text.encode())] for own, text in zip(edges, windows, strict=True)]
        )
        after = bits_between(self.module, self.new, windows, edges)
        bins = int((sizes.sum(0) > 0).sum())  # a model of few positions has windows of few
        before, ends = (
            np.array(self.untouched.windows[name]),
            [min(edge, self.length) for edge in (*EDGES, LENGTH)],
        )
        return Bits(before[:, :bins], after[:, :bins], sizes[:, :bins], ends[: bins + 1])


def _side_by_side(*texts: Sequence[str]) -> list[Sample]:
    """Of openings and what was written after each before and after."""
    return [
        Sample(opening=opening, before=before, after=after)
        for opening, before, after in zip(*texts, strict=True)
    ]


def openings_of(file: str) -> list[str]:
    """Of the first documents of a text."""
    documents = itertools.islice(read_documents([file]), OPENINGS)
    return [" ".join(" ".join(document).split()[:WORDS])[:CHARACTERS] for document in documents]


def find_kept(
    model: Path,
    tokenizer: Path,
    pack: Path,
    path: Path,
    held_out: Mapping[str, str],
    source: str,
    given: Mapping[str, str] | None = None,
    strengths: Sequence[float] = STRENGTHS,
    column: str = "text",
    openings: Sequence[str] = (),
    chats: Sequence[Dialogue] = (),
    say: Callable[[str], None] = print,
) -> Kept:
    """Find what an adapted decoder keeps at the first of `strengths` that loses at most MOST_LOST
    points of right answers, or else at the last one.

    model, tokenizer, pack: as of a Comparison. held_out: {language: file} of text like that which
    trained. given: files of other text. path: file in which the result is cached, by a hash of what
    it depends on, beside that of the untouched model. openings: of texts to continue; chats:
    dialogues in the added language, up to an answer. Where too few questions fit, the first
    strength stays.
    """
    given = given or {}
    texts = {**held_out, **given}
    memory = path.with_name(UNTOUCHED)
    both = Comparison(
        model,
        tokenizer,
        pack,
        texts,
        memory,
        column,
        openings=openings,
        chats=chats,
        source=source,
    )
    strengths = strengths if both.added.update else (1.0,)
    added = identity(pack)
    judged = rules_of(both.asked.code)
    key = sha256_of_json([both.untouched.key, added, [*strengths], source, dict(given), judged])
    if path.exists() and (known := read_model(path, Kept, "delete that file")).key == key:
        return known

    questions = [index for index, asked in enumerate(both.dialogues) if asked.question]
    is_choice = len(strengths) > 1 and len(questions) >= FEWEST_TO_CHOOSE
    lost_at = dict[float, float]()
    for strength in strengths:
        both.put(strength)
        answers = both.answers(questions)
        if not is_choice:
            break
        lost_at[strength] = points_lost(answers).percent
        say(f"merge strength {strength:g}: {lost_at[strength]:.1f} points of right answers lost")
        if lost_at[strength] <= MOST_LOST:
            break
    bits = {name: both.bits(name) for name in texts}
    said = _reported(both, answers, bits, held_out)
    said["sentences"].insert(0, _of_strength(strength, lost_at, len(strengths) > 1))
    missing = ["other texts and other languages (--test-text, --known-text)"] * (not given)
    missing += [f"{source} (--source-text)"] * (source not in held_out)
    said["sentences"] += [f"not looked at: {', '.join(missing)}."] * bool(missing)
    kept = Kept(key=key, pack=added, strength=strength, **said)
    write_json(path, kept.model_dump())
    return read_model(path, Kept, "delete that file")


def _of_strength(strength: float, lost_at: Mapping[float, float], is_choice: bool) -> str:
    """Say which merge strength is written, why, and which call writes another.

    lost_at: {strength: points of right answers lost there} of those that were looked at.
    """
    another = "`ds-minimodel export-hf MODEL OUT --pack PACK --strength S` writes another"
    if not is_choice:
        return f"merge strength {strength:g}, as asked for; {another}."
    if not lost_at:
        return f"merge strength {strength:g}: fewer than {FEWEST_TO_CHOOSE} questions; {another}."
    each = ", ".join(f"{lost:.1f} points at {tried:g}" for tried, lost in lost_at.items())
    return (
        f"merge strength {strength:g}: right answers fall by {each}, where {MOST_LOST:g} may be "
        f"lost; {another}."
    )


def _reported(
    both: Comparison, answers: list[Sample], bits: Mapping[str, Bits], held_out: Mapping[str, str]
) -> dict[str, Any]:
    """What a Kept says of the strength in memory: by answers and texts, of which there are
    `bits`.
    """
    samples, measures = both.samples()
    index = range(len(both.dialogues))
    sentences, texts, worse = list[str](), list[str](), list[tuple[str, str, Change]]()
    if answers:
        sentence, of_answers = _of_answers(both, answers)
        sentences.append(sentence)
        measures += of_answers
        worse.append(("answers", "the share of right answers", points_lost(answers)))
    if index:
        changed, before, after = both.chat(index)
        sentences.append(
            f"{100 - changed.percent:.0f} % of the likeliest tokens of its answers before are the "
            "same; "
            f"{before:.3f} bits per token before, {after:.3f} after."
        )
        what = "the untouched model's own chats"
        measures.append(Measure(what=what, unit="bits per token", before=before, after=after))
        worse.append(("chat", "what it says", changed))
    for name, own in bits.items():
        if name in held_out:
            what = f"{name}, {PAGES}"
            of_text = own.measures(what)
            places = zip(own.places, own.rises, strict=True)
            worse += [("contexts", f"{name} at {place}", rise) for place, rise in places]
        else:
            what, (before, after) = name, own.a_byte
            of_text = [Measure(what=what, unit=_BITS, before=before, after=after)]
            worse.append(("texts", name, own.rise))
        measures += of_text
        each = (
            f"{own.what}: {own.texts[0]} {_BITS} before, {own.texts[1]} after" for own in of_text
        )
        texts.append(f"{', '.join(each)}.".replace(f", {what}", ""))  # once is enough
    if chats := both.answers_to_chats():
        clause, manners = _loops_and_language(both, chats)
        sentences.append(
            f"of the answers to {len(chats)} held-out questions of your dialogues {clause}."
        )
        measures += _rows(
            {f"answers to your dialogues that {name}": numbers for name, numbers in manners.items()}
        )
    answers.sort(
        key=lambda own: (not own.was_right or own.is_right, begins_alike(own.before, own.after))
    )
    advice = FORGETS[bool(both.added.update)]
    return {
        "sentences": sentences,
        "texts": texts,
        "worse": [f"{what} {advice}." for kind, what, own in worse if own.percent > WORSE[kind]],
        "measures": measures,
        "answers": answers[:SHOWN],
        "samples": samples,
        "chats": chats[:SHOWN],
    }


def points_lost(answers: Sequence[Sample]) -> Change:
    """Of right answers, in points. The error is that of half an answer more lost and half a one
    more won, so that it is not 0 where none is (Agresti and Min, 2005).
    """
    lost, number = np.array([own.was_right - own.is_right for own in answers]), len(answers) + 2
    error = math.sqrt((lost**2).sum() + 1 - lost.sum() ** 2 / number) / number
    return Change(100 * float(lost.mean()), 100 * error, len(answers))


def _of_answers(both: Comparison, answers: Sequence[Sample]) -> tuple[str, list[Measure]]:
    """A sentence and rows: what is right, begins as before, loops, and is in the language that was
    added.
    """
    gone = sum(own.was_right and not own.is_right for own in answers)
    alike = sum(begins_alike(own.before, own.after) for own in answers)
    right = [sum(own.was_right for own in answers), sum(own.is_right for own in answers)]
    lost, asked = points_lost(answers), f"{len(answers)} {both.asked.language} questions"
    gain, half = (
        0.0 - lost.percent,
        lost.bound(TWO_SIDED) - lost.percent,
    )  # no sign where there is none
    between = f"at 95 % from {gain - half:+.1f} to {gain + half:+.1f}"
    clause, manners = _loops_and_language(both, answers)
    sentence = (
        f"of {asked} {right[0]} right before, {right[1]} after ({gone} lost, "
        f"{right[1] - right[0] + gone} won; "
        f"{gain:+.1f} points, {between}); {100 * alike / len(answers):.0f} % of the "
        f"answers begin as before, {clause}."
    )
    rows = {f"right answers to {asked}": right, "those that begin as before": [len(answers), alike]}
    return sentence, _rows(
        rows | {f"those that {name}": numbers for name, numbers in manners.items()}
    )


def _loops_and_language(
    both: Comparison, answers: Sequence[Sample]
) -> tuple[str, dict[str, list[int]]]:
    """How many answers loop, and how many are in the language that was added, before and after: in
    words, and each.
    """
    language = both.added.language
    tests = {"loop": loops, f"are in {language}": spoken(language, both.asked.code)}
    manners = {
        name: [
            sum(map(is_so, texts))
            for texts in zip(*((own.before, own.after) for own in answers), strict=True)
        ]
        for name, is_so in tests.items()
        if is_so
    }
    share = 100 / len(answers)
    each = (
        f"{after * share:.0f} % {name} ({before * share:.0f} % before)"
        for name, (before, after) in manners.items()
    )
    return ", ".join(each), manners


def _rows(numbers: Mapping[str, Sequence[int]]) -> list[Measure]:
    make = functools.partial(Measure, unit="answers", decimals=0)
    return [
        make(what=what, before=before, after=after) for what, (before, after) in numbers.items()
    ]


def _predicted(
    module: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(which answer, nats of its tokens after its prompt, the likeliest ids in their places),
    longest rows first.
    """
    shared, caches = shared_prefix(module, prompts)
    rows = [[*prompt[shared:], *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    order, head = (
        sorted(range(len(rows)), key=lambda at: -len(rows[at])),
        module.get_output_embeddings(),
    )
    positions = max(1, SCORES_AT_ONCE // head.out_features)
    never = [id for id in module.generation_config.suppress_tokens or () if id < head.out_features]
    while order:
        width = len(rows[order[0]])
        index, order = order[: (number := max(1, TOKENS_AT_ONCE // width))], order[number:]
        ids = torch.tensor(
            [rows[at] + [0] * (width - len(rows[at])) for at in index], device=module.device
        )
        targets = torch.tensor([id for at in index for id in answers[at]], device=module.device)
        pairs = list[torch.Tensor]()
        with torch.inference_mode():
            # causal: what fills a row up changes nothing before it
            cache = caches(len(index))
            hidden = module.base_model(
                ids, cache=cache, use_cache=cache is not None
            ).last_hidden_state
            ends = [len(rows[at]) - 1 for at in index]
            own = [
                row[end - len(answers[at]) : end]
                for at, end, row in zip(index, ends, hidden, strict=True)
            ]
            for part, target in zip(
                torch.cat(own).split(positions), targets.split(positions), strict=True
            ):
                logits = head(part).float()
                nats = logits.logsumexp(-1) - logits.gather(-1, target[:, None])[:, 0]
                logits[:, never] = -math.inf
                pairs.append(torch.stack([nats, logits.argmax(-1)]).cpu())
        cuts = np.cumsum([len(answers[at]) for at in index])[:-1]
        yield from zip(
            index, *(np.split(each, cuts) for each in torch.cat(pairs, 1).numpy()), strict=True
        )


def _read_again(
    module: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> np.ndarray:
    """(likeliest tokens that are others, bits) of each answer, (N, 2)."""
    sums = np.zeros((len(answers), 2))
    for at, nats, likeliest in _predicted(module, prompts, answers):
        sums[at] = (likeliest != answers[at]).sum(), nats.sum() / math.log(2)
    return sums


# Text by position.


class Bits(NamedTuple):
    """Bits of a text before and after, and its bytes, by window and position: (windows, bins) each.
    edges: of the bins, in tokens of the untouched model.
    """

    before: np.ndarray
    after: np.ndarray
    sizes: np.ndarray
    edges: list[int]

    @property
    def rise(self) -> Change:
        """Of the whole text's bits."""
        return Change.of((self.after - self.before).sum(1), self.before.sum(1))

    @property
    def rises(self) -> list[Change]:
        """By position."""
        return [
            Change.of(after - before, before)
            for before, after in zip(self.before.T, self.after.T, strict=True)
        ]

    @property
    def a_byte(self) -> tuple[float, float]:
        """Bits, before and after."""
        return float(self.before.sum() / self.sizes.sum()), float(
            self.after.sum() / self.sizes.sum()
        )

    @property
    def places(self) -> list[str]:
        return [f"tokens {first:,}–{last:,}" for first, last in pairwise(self.edges)]

    def measures(self, what: str) -> list[Measure]:
        """Bits per byte by position. what: the text is."""
        before, after = (own.sum(0) / self.sizes.sum(0) for own in (self.before, self.after))
        each = zip(self.places, before.tolist(), after.tolist(), strict=True)
        return [
            Measure(what=f"{what}, {place}", unit=_BITS, before=one, after=other)
            for place, one, other in each
        ]


def windows_of(tokenizer: Tokenizer, path: str | Path, length: int, column: str) -> list[str]:
    """The beginning of a text, its documents one after the other, in parts of at most `length`
    tokens.
    """
    text = ""
    for document in read_documents([path], column):
        text += "\n".join(document) + "\n\n"
        if len(text) >= TEXT_BYTES:  # characters are bytes at least
            break
    text, parts = text.encode()[:TEXT_BYTES].decode(errors="ignore"), list[str]()
    while text:  # what is left is encoded again: some vocabularies put a space before it
        _, spans = tokenizer.encode_with_offsets(text)
        end = (
            min(spans[length - 1][1], spans[length][0]) if len(spans) > length else len(text)
        )  # not in a character
        parts, text = [*parts, text[: max(1, end)]], text[max(1, end) :]
    return [part for part in parts if part.strip()]


def _edges(tokenizer: Tokenizer, text: str) -> list[int]:
    """Bytes at which the positions EDGES of a text begin, its length where it has fewer."""
    (ids,) = tokenizer.encode([text])
    begins = np.cumsum([0, *np.array(tokenizer.num_bytes())[ids]])
    return [int(begins[min(edge, len(ids))]) for edge in EDGES]


def bits_between(
    module: Any, tokenizer: Tokenizer, texts: Sequence[str], edges: Sequence[Sequence[int]]
) -> np.ndarray:
    """Bits of each text's tokens, summed from each of its `edges` (byte offsets) to the next:
    (texts, edges).
    """
    start = [] if tokenizer.scored_after is None else [tokenizer.scored_after]
    sizes, encoded = np.array(tokenizer.num_bytes()), tokenizer.encode(texts)
    bits = np.zeros((len(texts), len(EDGES)))
    rows = [[*start, *ids] for ids in encoded]
    for at, nats, _ in _predicted(module, [row[:1] for row in rows], [row[1:] for row in rows]):
        begins = np.cumsum([0, *sizes[encoded[at]]])[:-1]
        bins = np.searchsorted(edges[at], begins[len(begins) - len(nats) :], side="right") - 1
        np.add.at(bits[at], bins, nats / math.log(2))
        for place, size in tokenizer.unknown(texts[at], encoded[at]):  # as if it were spelt out
            bits[
                at, np.searchsorted(edges[at], len(texts[at][:place].encode()), side="right") - 1
            ] += 8 * size
    return bits
