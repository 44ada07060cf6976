"""One body in memory, many languages: predictions in the language that each request names."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ds_minimodel import tasks
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.model.artifacts import load_body
from ds_minimodel.model.heads import MaskedLanguageModel, to_tensors
from ds_minimodel.model.parameters import load_into
from ds_minimodel.model.transformer import LanguagePack
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.serve import answers
from ds_minimodel.serve.packs import open_pack
from ds_minimodel.steps.task_data import task_module
from ds_minimodel.tasks.batches import EVALUATION_TOKENS


@dataclass(frozen=True)
class _Language:
    """A language that is plugged in: its module, its vocabulary, and what it replaces of the body."""

    module: LanguagePack
    tokenizer: object
    body: dict


class Predictor:
    """A task model, or a body with its masked-LM heads, that serves many languages.

    >>> predictor = Predictor("finetune/minijoint/nli/seed-1/model", {"de": "adapt/minijoint/de/pack",
    ...                                                                "tr": "adapt/minijoint/tr/pack"})
    >>> predictor.predict([{"language": "de", "sentence1": "Es regnet.", "sentence2": "Es ist nass."}])
    [{'label': 'entailment', 'scores': {'contradiction': 0.02, 'entailment': 0.9, 'neutral': 0.08}}]

    A request holds what the task reads: "text"; "sentence1" and "sentence2"; or "question" and "context",
    answered by {"answer", "score"}. A body answers "text" with <mask> in it by the likeliest
    pieces of each. "language" may be left out where there is one.

    The body's weights are in memory once, whatever the number of languages; each adds its embeddings. A task
    model is finetuned as a whole, so that another task is another Predictor.
    """

    def __init__(self, model_folder, pack_folders, depth=None, top=5):
        """pack_folders: {language: folder}. depth: masked-LM head, default the deepest; top: pieces a mask.

        UserError for a folder that is missing, damaged or of another body, and for a depth without a head.
        """
        if top < 1:
            raise UserError(f"--top {top}: there must be at least 1 piece for each <mask>")
        artifact = load_body(model_folder)
        if not pack_folders:
            raise UserError("no language pack; give one at least, for example --pack de=FOLDER")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            configure_cpu()
        dtype = DTYPES[resolve_precision("auto", self.device)]
        self.kind = artifact.task["kind"] if artifact.task else "masked-lm"
        self.labels, self.top = artifact.task and artifact.task["labels"], top
        self.depth = _depth(model_folder, artifact.config, depth, self.kind)
        self.max_length = artifact.config.max_positions
        if artifact.task:
            self.model = task_module(self.kind, artifact.config, 2, self.labels)  # packs come below
            load_into(self.model, artifact.tensors)
        else:
            self.model = MaskedLanguageModel(artifact.config, 2)
            load_into(self.model, artifact.tensors, "body.")
        self.model.eval().to(self.device, dtype)
        self.languages = {language: self._load(folder, artifact, dtype) for language, folder in pack_folders.items()}
        replaced = {name for language in self.languages.values() for name in language.body}
        self._own = {name: tensor.clone() for name, tensor in self.model.state_dict().items() if name in replaced}

    def _load(self, folder, artifact, dtype):
        pack, tokenizer = open_pack(folder, artifact)
        with torch.device("meta"):
            module = LanguagePack(*pack.tensors["tokens"].shape)
        module.load_state_dict({name: pack.tensors[name] for name in ("tokens", "bias")}, assign=True)
        body = {
            name: tensor.to(self.device, dtype) for name, tensor in pack.tensors.items() if name.startswith("body.")
        }
        return _Language(module.to(self.device, dtype), tokenizer, body)

    def predict(self, requests):
        """Answers to requests (dicts), in their order; UserError names the first request that is wrong."""
        by_language = {}
        for number, request in enumerate(requests):
            answers.check(request, self.kind, self.languages, f"request {number + 1}")
            language = request.get("language") or next(iter(self.languages))
            by_language.setdefault(language, []).append(number)
        found = [None] * len(requests)
        for language, numbers in by_language.items():
            self._use(self.languages[language])
            of_language = answers.ANSWER[self.kind](
                self, self.languages[language].tokenizer, [requests[number] for number in numbers]
            )
            for number, answer in zip(numbers, of_language, strict=True):
                found[number] = answer
        return found

    def _use(self, language):
        self.model.pack = language.module
        state = self.model.state_dict()
        for name, own in self._own.items():
            state[name].copy_(language.body.get(name, own))

    def batches(self, examples):
        """(index, batch of tensors on the device) for all of `examples`, of like length together."""
        for index, batch in tasks.evaluation_batches(examples, EVALUATION_TOKENS):
            yield index, to_tensors(batch, self.device)


def _depth(folder, config, depth, kind):
    if kind != "masked-lm":
        if depth is not None:
            raise UserError(f"{folder}: a task model has one head; leave out --head")
        return None
    if not config.head_depths:
        raise UserError(f"{folder}: a body without a masked-LM head; nothing can be predicted")
    if depth is None or depth in config.head_depths:
        return depth or config.head_depths[-1]
    raise UserError(f"{folder}: no head at depth {depth}; there are heads at {', '.join(map(str, config.head_depths))}")


def beside(model_folder):
    """{its language: folder} of the pack that lies beside a model, as `pack plug` and the steps leave it."""
    folder = Path(model_folder).resolve().parent / "pack"
    return {read_manifest(folder)["language"]: folder} if folder.is_dir() else {}
