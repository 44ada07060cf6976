"""Predictions of a task model or a body, in the language that each request names."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact
from ds_minimodel.data.rows import text_field
from ds_minimodel.data.tokenizer import MASK, Tokenizer
from ds_minimodel.models.artifacts import BodyArtifact, PackManifest, load_body, load_task_model
from ds_minimodel.models.body import LanguagePack
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.serve.packs import open_pack
from ds_minimodel.tasks import task_of
from ds_minimodel.tasks.batches import INFERENCE_TOKENS, Examples, inference_batches
from ds_minimodel.tasks.kind import FinetunedKind, Request


class ManyLanguages:
    """The packs of a body by language, and where and in what a model computes with them.

    packs: {language: PackArtifact}. tokenizers: {language: Tokenizer}.
    """

    def __init__(
        self,
        artifact: BodyArtifact,
        model_folder: str | Path,
        pack_folders: Mapping[str, str | Path],
        precision: str | None = None,
    ) -> None:
        """artifact: of model_folder. pack_folders, precision: as of Predictor."""
        if not pack_folders:
            raise UserError("no language pack; give one at least, for example --pack de=FOLDER")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            configure_cpu()
        else:
            check_gpus(1)
        if precision not in (None, "auto", *DTYPES):
            raise UserError(f"--precision {precision}: there are {', '.join(DTYPES)} and auto")
        default = "fp32" if self.device.type == "cpu" else "auto"
        self.precision = resolve_precision(precision or default, self.device, "--precision")
        self.dtype = DTYPES[self.precision]
        opened = {language: open_pack(folder, artifact, model_folder) for language, folder in pack_folders.items()}
        self.packs = {language: pack for language, (pack, _) in opened.items()}
        self.tokenizers = {language: tokenizer for language, (_, tokenizer) in opened.items()}

    def language(self, name: object, where: str) -> str:
        """The language of that name, or the only one; UserError, beginning with `where`, where there is none."""
        languages = ", ".join(self.packs)
        if name is None and len(self.packs) > 1:
            raise UserError(f"{where}: no language is named; there are {languages}")
        if name is not None and (not isinstance(name, str) or name not in self.packs):
            shown = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
            raise UserError(f"{where}: no pack for language {shown:.40}; there are {languages}")
        return str(name or next(iter(self.packs)))


class SharedModel:
    """A model whose weights are there once, for many languages: each adds its embeddings.

    module: into which the language is plugged of which `plug` was called last.
    """

    def __init__(self, module: Any, artifact: BodyArtifact, languages: ManyLanguages) -> None:
        """module: one with `body` and `pack`."""
        place: Any = {"device": languages.device, "dtype": languages.dtype}
        self.module = module.eval().to(**place)
        self._packs: dict[str, LanguagePack] = {}
        self._replaced: dict[str, dict[str, torch.Tensor]] = {}  # of the body, by each language
        for language, pack in languages.packs.items():
            with torch.device("meta"):
                own = LanguagePack(len(pack.tensors["tokens"]), artifact.config)
            own.load_state_dict({name: pack.tensors[name] for name in artifact.config.language_tensors}, assign=True)
            self._packs[language] = own.to(**place)
            self._replaced[language] = {
                name: tensor.to(**place) for name, tensor in pack.tensors.items() if name.startswith("body.")
            }
        names = {name for tensors in self._replaced.values() for name in tensors}
        self._own = {name: tensor.clone() for name, tensor in self.module.state_dict().items() if name in names}

    def plug(self, language: str) -> None:
        """Put a language into `module`."""
        self.module.pack = self._packs[language]
        state = self.module.state_dict()
        for name, own in self._own.items():
            state[name].copy_(self._replaced[language].get(name, own))


def beside(model_folder: str | Path) -> dict[str, Path]:
    """{its language: folder} of the pack that lies beside a model, as `pack plug` and the steps leave it."""
    folder = Path(model_folder).resolve().parent / "pack"
    return {read_artifact(folder, PackManifest).language: folder} if folder.is_dir() else {}


Answer = dict[str, object]  # a JSON object


class Answerer(ABC):
    """Requests that a model takes, and its answers. fields: keys of a request, as they are typed."""

    fields: tuple[str, ...] = ("text",)

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        """Raise UserError, beginning with `where`, for a request that the model does not take in its language."""
        text_field(request, "text", where)

    @abstractmethod
    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        """Answers to checked requests in one language, in their order."""


class TaskAnswerer(Answerer):
    """A task model: its kind says what it is asked and what it answers."""

    def __init__(self, model: SharedModel, kind: FinetunedKind, labels: list[str] | None, max_length: int):
        self.model, self.kind, self.labels, self.max_length = model, kind, labels, max_length
        self.fields = kind.fields

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        self.kind.check_request(request, where)

    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        self.model.plug(language)
        separators = self.model.module.body.config.separators
        records, encoded = self.kind.encode_requests(tokenizer, requests, self.labels, self.max_length, separators)
        return self.kind.answers(records, encoded, outputs(self.model.module, encoded.examples), self.labels)


class MaskAnswerer(Answerer):
    """A body that was trained to fill masks: for each <mask> the `top` likeliest pieces."""

    def __init__(self, models: Mapping[str, Any], top: int, max_length: int):
        """models: of transformers, for each language."""
        self.models, self.top, self.max_length = models, top, max_length

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        text = text_field(request, "text", where)
        tokenizer.vocabulary.require("mask", "a prediction of pieces")
        if not _spelt(tokenizer).search(text):
            raise UserError(f"{where}: no {tokenizer.mask} in the text; put one where a piece is to be predicted")

    @torch.inference_mode()
    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        model, pieces, answers = self.models[language], tokenizer.pieces(), list[Answer]()
        for request in requests:
            ids_1S = torch.tensor([with_masks(tokenizer, str(request["text"]), self.max_length)], device=model.device)
            logits_MV = model(ids_1S).logits[ids_1S == tokenizer.vocabulary.mask].float()
            shares, ids = logits_MV.softmax(-1)[:, : len(pieces)].topk(min(self.top, len(pieces)))
            masks = [
                [{"piece": pieces[id], "probability": share} for id, share in zip(*row, strict=True)]
                for row in zip(ids.tolist(), shares.tolist(), strict=True)
            ]
            answers.append({"masks": masks})
        return answers


class CompletionAnswerer(Answerer):
    """A body that predicts next tokens: the likeliest continuation of a text, of one that is too long of its end."""

    def __init__(self, models: Mapping[str, Any], tokens: int, max_length: int):
        """models: of transformers, for each language. tokens: of a continuation, at most."""
        if not 1 <= tokens <= max_length - 2:
            raise UserError(
                f"--tokens {tokens}: give at least 1; the model takes {max_length} tokens, those of the text among them"
            )
        self.models, self.tokens, self.room = models, tokens, max_length - tokens

    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        from transformers import GenerationConfig

        model, vocabulary = self.models[language], tokenizer.vocabulary
        pad = vocabulary.pad if vocabulary.pad is not None else vocabulary.eos
        config = GenerationConfig(
            max_new_tokens=self.tokens, do_sample=False, eos_token_id=vocabulary.eos, pad_token_id=pad
        )
        begin, answers = vocabulary.frame[0], list[Answer]()
        for request in requests:
            ids = [*begin, *tokenizer.encode([str(request["text"])])[0][len(begin) - self.room :]]
            ids_1S = torch.tensor([ids or [vocabulary.require("eos", "a text that starts from nothing")]])
            ids_1S = ids_1S.to(model.device)
            found = model.generate(ids_1S, attention_mask=torch.ones_like(ids_1S), generation_config=config)
            new = found[0, ids_1S.shape[1] :].tolist()
            answers.append({"text": tokenizer.decode([id for id in new if id != vocabulary.eos])})
        return answers


def _spelt(tokenizer: Tokenizer) -> re.Pattern[str]:
    """How a text asks for a piece: as the vocabulary spells its mask token, or as ours do."""
    return re.compile("|".join(map(re.escape, (tokenizer.mask or MASK, MASK))))


def with_masks(tokenizer: Tokenizer, text: str, max_length: int) -> list[int]:
    """<s>, the text with the id of <mask> wherever it is spelt, </s>."""
    vocabulary = tokenizer.vocabulary
    (begin, end), mask = vocabulary.frame, vocabulary.require("mask", "a prediction")
    room = max_length - len(begin) - len(end)
    *before, last = _spelt(tokenizer).split(text)
    parts = tokenizer.encode([*(part.rstrip() if tokenizer.mask_takes_space else part for part in before), last])
    ids = list(chain.from_iterable([mask, *part] for part in parts))[1:]
    if mask in ids[room:]:
        raise UserError(
            f"the text {text[:30]!r}… has a {tokenizer.mask} beyond the {max_length} tokens that the model takes; "
            "shorten it"
        )
    return [*begin, *ids[:room], *end]


@torch.inference_mode()
def outputs(module: Any, examples: Examples) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(index, what `module.logits` gives) for all of `examples`, batches of like length."""
    device = next(module.parameters()).device
    for index, batch in inference_batches(examples, INFERENCE_TOKENS):
        yield index, module.logits(to_tensors(batch, device)).float().cpu().numpy()


class Predictor(ManyLanguages):
    """A task model, or a body with its heads, that serves many languages.

    >>> predictor = Predictor("finetune/minijoint/nli/seed-1/model", {"de": "adapt/minijoint/de/pack",
    ...                                                                "tr": "adapt/minijoint/tr/pack"})
    >>> predictor.predict([{"language": "de", "sentence1": "Es regnet.", "sentence2": "Es ist nass."}])
    [{'label': 'entailment', 'scores': {'contradiction': 0.02, 'entailment': 0.9, 'neutral': 0.08}}]

    What a request holds and what is answered to it is the kind of task's (tasks/): "text", "sentence1" and
    "sentence2", … A body answers "text" with <mask> in it by the likeliest pieces of each, or, where it predicts next
    tokens, any text by what comes after it. "language" may be left out where there is one.

    A task model's weights are in memory once for any number of languages; each adds its embeddings. A body is asked as
    one model of transformers for each language; these share the body's weights in fp32 on a CPU, and elsewhere each has
    its own. A task model is finetuned as a whole, so that another task is another Predictor.
    """

    def __init__(
        self,
        model_folder: str | Path,
        pack_folders: Mapping[str, str | Path],
        depth: int | None = None,
        top: int = 5,
        precision: str | None = None,
        tokens: int | None = None,
    ):
        """pack_folders: {language: folder}. depth: of the head, default the deepest; top: pieces a mask.

        tokens: by how many a body that predicts next tokens continues a text, at most; default 32.

        precision: fp32, bf16, fp16, or auto, which takes the fastest that suits the device. Without one it is fp32 on a
        CPU, as the exported model answers there, and auto on a GPU.

        UserError for a folder that is missing, damaged or of another body, and for a depth without a head.
        """
        if top < 1:
            raise UserError(f"--top {top}: there must be at least 1 piece for each <mask>")
        artifact = load_body(model_folder)
        is_causal = artifact.task is None and OBJECTIVES[artifact.objective].causal
        if tokens is not None and not is_causal:
            raise UserError(f"{model_folder}: --tokens is for a body that predicts next tokens")
        if artifact.task is not None:
            if depth is not None:
                raise UserError(f"{model_folder}: a task model has one head; leave out --head")
            kind, labels = task_of(model_folder, artifact)
        super().__init__(artifact, model_folder, pack_folders, precision)
        max_length = artifact.config.max_positions
        self.answerer: Answerer
        if artifact.task is not None:
            module = kind.module(artifact.config, 2, labels)  # of two pieces, which the languages' packs replace
            load_task_model(module, artifact, model_folder)
            self.answerer = TaskAnswerer(SharedModel(module, artifact, self), kind, labels, max_length)
            return
        try:
            from ds_minimodel.hf.convert import exported
        except ImportError:
            raise UserError(
                "transformers, which asks a body, is not installed; pip install 'ds_minimodel[hf]'"
            ) from None
        models = {}
        for language, pack in self.packs.items():
            model = exported(model_folder, artifact, pack, self.tokenizers[language].vocabulary, depth)
            models[language] = model.module(self.dtype).to(self.device)
        if is_causal:
            self.answerer = CompletionAnswerer(models, 32 if tokens is None else tokens, max_length)
        else:
            self.answerer = MaskAnswerer(models, top, max_length)

    def check_request(self, request: object, where: str) -> str:
        """The language of a request; UserError, beginning with `where`, for one that the model does not take."""
        if not isinstance(request, dict):
            fields = ", ".join(self.answerer.fields)
            raise UserError(f"{where}: {type(request).__name__} is not an object with {fields}")
        language = self.language(request.get("language"), where)
        self.answerer.check_request(request, self.tokenizers[language], where)
        return language

    def predict(self, requests: Sequence[Mapping[str, object]]) -> list[Answer]:
        """Answers to requests (dicts), in their order; UserError names the first request that is wrong."""
        by_language: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_language.setdefault(self.check_request(request, f"request {number + 1}"), []).append(number)
        found: list[Answer] = [{}] * len(requests)
        for language, numbers in by_language.items():
            asked = [requests[number] for number in numbers]
            answers = self.answerer.answer(language, self.tokenizers[language], asked)
            for number, answer in zip(numbers, answers, strict=True):
                found[number] = answer
        return found
