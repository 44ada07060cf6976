"""Foreign models that give a vector or scores of labels for a text: which head they have.

A folder of sentence-transformers names Python classes and folders in `modules.json`. Of these
classes there is a closed list here, none is imported, and each folder lies inside the model's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_json, read_model
from ds_minimodel.models.heads import AnyHead, LabelHead, Projection, Prompt, SentenceHead
from ds_minimodel.models.kind import BodyConfig

MODULES = "modules.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
PART = "config.json"
# What a name on the Hub needs beside a model's own files; folders are named by number and class
SENTENCE_SETTINGS = MODULES, SETTINGS, PROMPTS, "*_Pooling/config.json", "*_Dense/config.json"
SENTENCE_WEIGHTS = "*_Dense/model.safetensors", "*_Dense/pytorch_model.bin"
ADVICE = "download the model again"

_SERVED = ("Transformer", "Pooling", "Dense", "Normalize")
_CLASS = re.compile(r"sentence_transformers(\.\w+)*\.(\w+)", re.ASCII)
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


class _Strict(Stored):
    model_config = ConfigDict(extra="forbid")


class _Module(_Strict):
    """An entry of modules.json."""

    idx: int
    name: str
    path: str
    type: str
    kwargs: Annotated[list[str], Field(max_length=0)] = []


class _Settings(_Strict):
    """sentence_bert_config.json: how a text becomes ids."""

    max_seq_length: int | None = None
    do_lower_case: bool = False
    transformer_task: Annotated[str, Field(pattern="^feature-extraction$")] = "feature-extraction"
    modality_config: dict[str, Any] = _TEXT
    module_output_name: Annotated[str, Field(pattern="^token_embeddings$")] = "token_embeddings"
    unpad_inputs: bool | None = None
    model_args: Annotated[dict[str, Any], Field(max_length=0)] = {}
    config_args: Annotated[dict[str, Any], Field(max_length=0)] = {}
    tokenizer_args: Annotated[dict[str, Any], Field(max_length=0)] = {}


class _Prompts(Stored):
    """Of config_sentence_transformers.json what is used here."""

    model_type: str = "SentenceTransformer"
    prompts: dict[str, str | None] = {}
    default_prompt_name: str | None = None


class _Dense(_Strict):
    """config.json of a Dense."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    module_input_name: Annotated[str, Field(pattern="^sentence_embedding$")] = "sentence_embedding"
    module_output_name: Annotated[str, Field(pattern="^sentence_embedding$")] | None = None
    use_residual: bool = False


def is_sentence_model(folder: Path) -> bool:
    """Whether a folder is one of sentence-transformers."""
    return (folder / MODULES).is_file()


def has_labels(classes: object) -> bool:
    """Whether a model is a classifier, by the names of transformers' classes in its config.json."""
    name = classes[0] if isinstance(classes, list) and classes else None
    return isinstance(name, str) and name.endswith(LabelHead.hugging_face_class)


def read_head(
    folder: Path, hf_config: Any, classes: object, config: BodyConfig, pooling: str | None = None
) -> AnyHead | None:
    """The finished head of a foreign model; None of a language model.

    Args:
        folder: of the model.
        hf_config: transformers' configuration.
        classes: names of transformers' classes, as config.json has them.
        config: of our body, without the head.
        pooling: "mean" or "cls", of an encoder that names none.

    Raises:
        UserError: where a file says what is not served, by its name.
    """
    if is_sentence_model(folder):
        if pooling is not None:
            raise UserError(f"{folder / MODULES}: names a pooling; leave --pooling out")
        return _sentence_head(folder, config)
    if has_labels(classes):
        return _label_head(folder, hf_config, config)
    if pooling is None:
        return None
    max_length = _max_length(folder, None, config)
    return SentenceHead(pooling=pooling, max_length=max_length)  # type: ignore[arg-type]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """(class, folder) of each of a model's modules, in order."""
    path = folder / MODULES
    named = []
    for module in read_model(path, list[_Module], ADVICE):
        match = _CLASS.fullmatch(module.type)
        if match is None or match[2] not in _SERVED:
            raise UserError(
                f"{path}: {module.type!r:.100} is not served; there are {', '.join(_SERVED)}"
            )
        place = folder / module.path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: path {module.path!r:.80} leads out of the folder")
        named.append((match[2], place))
    kinds = [kind for kind, _ in named]
    dense = kinds.count("Dense")
    if kinds not in (
        ["Transformer", "Pooling", *["Dense"] * dense],
        ["Transformer", "Pooling", *["Dense"] * dense, "Normalize"],
    ):
        raise UserError(
            f"{path}: {', '.join(kinds)}; served are Transformer, Pooling, any Dense, and perhaps "
            "Normalize, in this order"
        )
    if named[0][1].resolve() != folder.resolve():
        raise UserError(
            f"{path}: the Transformer lies in {named[0][1].name!r:.80}; put its files beside "
            f"{MODULES} and leave the path empty"
        )
    return named


def _sentence_head(folder: Path, config: BodyConfig) -> SentenceHead:
    modules = _modules(folder)
    pooling, pools_prompt = _pooling(modules[1][1] / PART, config.hidden_size)
    projections = []
    width = config.hidden_size
    for kind, place in modules:
        if kind == "Dense":
            projections.append(_projection(place / PART, width))
            width = projections[-1].outputs
    said = _read(folder / PROMPTS, _Prompts)
    if said.model_type != "SentenceTransformer":
        raise UserError(
            f"{folder / PROMPTS}: model_type {said.model_type!r:.40} is not served; there is "
            "SentenceTransformer"
        )
    prompts = [Prompt(name=name, text=text or "") for name, text in said.prompts.items()]
    if not pools_prompt and pooling == "cls" and any(prompt.text for prompt in prompts):
        raise UserError(
            f"{modules[1][1] / PART}: include_prompt false is served with the pooling mean alone, "
            f"where there are prompts ({folder / PROMPTS})"
        )
    if said.default_prompt_name not in (None, *said.prompts):
        raise UserError(
            f"{folder / PROMPTS}: default_prompt_name {said.default_prompt_name!r:.40} is none of "
            "its prompts"
        )
    return SentenceHead(
        pooling=pooling,  # type: ignore[arg-type]
        max_length=_max_length(folder, settings_of(folder).max_seq_length, config),
        projections=tuple(projections),
        normalises=modules[-1][0] == "Normalize",
        prompts=tuple(prompts),
        pools_prompt=pools_prompt,
        default_prompt=said.default_prompt_name,
    )


def lowercases(folder: Path) -> bool:
    """Whether a model lowercases texts before its tokenizer does anything with them."""
    return is_sentence_model(folder) and settings_of(folder).do_lower_case


def settings_of(folder: Path) -> _Settings:
    """How texts become ids, by sentence_bert_config.json; UserError for what is not served."""
    settings = _read(folder / SETTINGS, _Settings)
    if settings.modality_config != _TEXT:
        raise UserError(
            f"{folder / SETTINGS}: modality_config {settings.modality_config!s:.80} is not served; "
            f"there is {_TEXT}"
        )
    return settings


def _read(path: Path, schema: Any) -> Any:
    return read_model(path, schema, ADVICE) if path.is_file() else schema()


def _max_length(folder: Path, said: int | None, config: BodyConfig) -> int:
    """Tokens of the longest text: as the settings have it, else as the tokenizer has it."""
    if said is None:
        path = folder / "tokenizer_config.json"
        values = read_json(path) if path.is_file() else {}
        known = values.get("model_max_length") if isinstance(values, dict) else None
        said = int(known) if isinstance(known, int | float) else config.max_positions
    length = min(said, config.max_positions)
    if length < 3:
        raise UserError(f"{folder / SETTINGS}: max_seq_length {said} is below 3")
    return length


def _pooling(path: Path, width: int) -> tuple[str, bool]:
    """Return "mean" or "cls", and whether a prompt's tokens are pooled too, by a config.json."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a mapping; {ADVICE}")
    modes = [key for key in values if key.startswith("pooling_mode_") and values[key] is True]
    named = values.get("pooling_mode", [_POOLINGS.get(mode, mode) for mode in modes] or ["mean"])
    chosen = [named] if isinstance(named, str) else named
    if not isinstance(chosen, list) or len(chosen) != 1 or chosen[0] not in _POOLINGS.values():
        raise UserError(f"{path}: pooling {named!s:.80} is not served; there are mean and cls")
    size = values.get("embedding_dimension", values.get("word_embedding_dimension", width))
    if size != width:
        raise UserError(f"{path}: embedding_dimension {size!s:.20}, where states have {width}")
    pools_prompt = values.get("include_prompt", True)
    if not isinstance(pools_prompt, bool):
        raise UserError(f"{path}: include_prompt {pools_prompt!r:.40} is neither true nor false")
    return chosen[0], pools_prompt


def _projection(path: Path, width: int) -> Projection:
    dense = read_model(path, _Dense, ADVICE)
    if dense.activation_function not in _ACTIVATIONS:
        raise UserError(
            f"{path}: activation_function {dense.activation_function!r:.80} is not served; there "
            f"are {', '.join(_ACTIVATIONS)}"
        )
    if dense.use_residual:
        raise UserError(f"{path}: use_residual is not served; there are plain layers")
    if dense.in_features != width:
        raise UserError(f"{path}: in_features {dense.in_features}, where {width} come in")
    return Projection(
        outputs=dense.out_features,
        bias=dense.bias,
        activation=_ACTIVATIONS[dense.activation_function],  # type: ignore[arg-type]
    )


def settings_files(folder: Path) -> list[Path]:
    """The files, beside weights, that decide what a model of sentence-transformers gives."""
    if not is_sentence_model(folder):
        return []
    parts = [place / PART for kind, place in _modules(folder) if kind in ("Pooling", "Dense")]
    return [folder / MODULES, folder / SETTINGS, folder / PROMPTS, *parts]


def projection_folders(folder: Path) -> list[Path]:
    """The folders of a model's Dense modules, in order."""
    if not is_sentence_model(folder):
        return []
    return [place for kind, place in _modules(folder) if kind == "Dense"]


def _label_head(folder: Path, hf_config: Any, config: BodyConfig) -> LabelHead:
    names = [str(hf_config.id2label[number]) for number in range(len(hf_config.id2label))]
    problem = getattr(hf_config, "problem_type", None)
    applies = "each" if problem == "multi_label_classification" else "one"
    if problem == "regression" or len(names) == 1:
        applies = "number"
    pooling = getattr(hf_config, "classifier_pooling", "cls")
    pooling = {"bos": "cls"}.get(pooling, pooling)
    if pooling not in _POOLINGS.values():
        raise UserError(
            f"{folder / PART}: classifier_pooling {pooling!r:.40} is not served; there are cls, "
            "bos and mean"
        )
    return LabelHead(
        pooling=pooling,  # type: ignore[arg-type]
        max_length=_max_length(folder, None, config),
        labels=tuple(names),
        applies=applies,  # type: ignore[arg-type]
    )
