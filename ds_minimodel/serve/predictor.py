"""Predictions of a task model or a body, in the language that each request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.models.artifacts import load_body, load_task_model
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.serve.answers import Answer, Answerer, CompletionAnswerer, MaskAnswerer, TaskAnswerer
from ds_minimodel.serve.many_languages import ManyLanguages, SharedModel
from ds_minimodel.tasks import task_of


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
        super().__init__(artifact, pack_folders, precision)
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
            models[language] = model.module().to(self.device, self.dtype)
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
