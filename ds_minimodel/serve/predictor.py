"""Predictions of a task model or a body, in the language that each request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.model.artifacts import BodyArtifact, load_body, load_task_model
from ds_minimodel.model.models import Model
from ds_minimodel.model.parameters import load_into
from ds_minimodel.objectives import OBJECTIVES
from ds_minimodel.serve.answers import Answer, Completion, CompletionAnswerer, MaskAnswerer, TaskAnswerer, check_request
from ds_minimodel.serve.many_languages import ManyLanguages
from ds_minimodel.tasks import task_of
from ds_minimodel.tasks.kind import Request
from ds_minimodel.tasks.tables import table_rows


class Predictor(ManyLanguages):
    """A task model, or a body with its heads, that serves many languages.

    >>> predictor = Predictor("finetune/minijoint/nli/seed-1/model", {"de": "adapt/minijoint/de/pack",
    ...                                                                "tr": "adapt/minijoint/tr/pack"})
    >>> predictor.predict([{"language": "de", "sentence1": "Es regnet.", "sentence2": "Es ist nass."}])
    [{'label': 'entailment', 'scores': {'contradiction': 0.02, 'entailment': 0.9, 'neutral': 0.08}}]

    What a request holds and what is answered to it is the kind of task's (tasks/): "text", "sentence1" and
    "sentence2", … A body answers "text" with <mask> in it by the likeliest pieces of each, or, where it predicts next
    tokens, any text by what comes after it. "language" may be left out where there is one.

    The body's weights are in memory once for any number of languages; each adds its embeddings. A task
    model is finetuned as a whole, so that another task is another Predictor.
    """

    def __init__(
        self,
        model_folder: str | Path,
        pack_folders: Mapping[str, str | Path],
        depth: int | None = None,
        top: int = 5,
        precision: str | None = None,
        completion: Completion | None = None,
    ):
        """pack_folders: {language: folder}. depth: of the head, default the deepest; top: pieces a mask.

        completion: how a body that predicts next tokens goes on with a text.

        precision: fp32, bf16, fp16, or auto, which takes the fastest that suits the device. Without one it is fp32 on a
        CPU, as the exported model answers there, and auto on a GPU.

        UserError for a folder that is missing, damaged or of another body, and for a depth without a head.
        """
        if top < 1:
            raise UserError(f"--top {top}: there must be at least 1 piece for each <mask>")
        artifact = load_body(model_folder)
        self.answerer = self._answerer(model_folder, artifact, depth, top, completion)
        super().__init__(self.answerer.model, artifact, pack_folders, precision)

    @staticmethod
    def _answerer(
        folder: str | Path, artifact: BodyArtifact, depth: int | None, top: int, completion: Completion | None
    ) -> TaskAnswerer | MaskAnswerer | CompletionAnswerer:
        """The Answerer of a model with a pack of two pieces, which the languages' packs replace."""
        config = artifact.config
        goes_on = artifact.task is None and OBJECTIVES[artifact.objective].causal
        if completion is not None and not goes_on:
            raise UserError(f"{folder}: --tokens, --top-p and --seed are for a body that predicts next tokens")
        if artifact.task is None:
            depth = _depth(folder, artifact.head_depths, depth)
            model = Model(config, 2, artifact.head_depths)
            load_into(model, artifact.tensors, "body.")
            if goes_on:
                return CompletionAnswerer(model, depth, completion or Completion(), config.max_positions)
            return MaskAnswerer(model, depth, top, config.max_positions)
        if depth is not None:
            raise UserError(f"{folder}: a task model has one head; leave out --head")
        kind, labels = task_of(folder, artifact)
        module = kind.module(config, 2, labels)
        load_task_model(module, artifact, folder)
        return TaskAnswerer(module, kind, labels, config.max_positions)

    def read_requests(self, path: str | Path) -> list[Request]:
        """The requests in a file (a table, as tasks have); UserError with the line of the first that is wrong."""
        requests: list[Request] = []
        for line, request in table_rows(path):
            check_request(request, self.answerer, self.tokenizers, f"{path}:{line}")
            requests.append(request)
        return requests

    def predict(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers to requests (dicts), in their order; UserError names the first request that is wrong."""
        by_language: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            check_request(request, self.answerer, self.tokenizers, f"request {number + 1}")
            language = str(request.get("language") or next(iter(self.languages)))
            by_language.setdefault(language, []).append(number)
        found: list[Answer] = [{}] * len(requests)
        for language, numbers in by_language.items():
            of_language = self.answerer.answer(self.plug(language), [requests[number] for number in numbers])
            for number, answer in zip(numbers, of_language, strict=True):
                found[number] = answer
        return found


def _depth(folder: str | Path, head_depths: Sequence[int], depth: int | None) -> int:
    """The depth of the head to ask; UserError where there is none."""
    if not head_depths:
        raise UserError(f"{folder}: a body without a head; nothing can be predicted")
    if depth is None or depth in head_depths:
        return depth or head_depths[-1]
    raise UserError(f"{folder}: no head at depth {depth}; there are heads at {', '.join(map(str, head_depths))}")
