"""Language packs: check that one is whole and fits a model, move it over another, plug it in."""

from dataclasses import replace
from pathlib import Path

import torch

from ds_minimodel.artifacts.adaptation import (
    AdaptationManifest,
    check_fit,
    check_space,
    load_adaptation,
    plug,
    save_adaptation,
    whole,
)
from ds_minimodel.artifacts.models import (
    Adaptation,
    BodyArtifact,
    is_model,
    load_body,
    load_model,
    model_below,
)
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact, refuse_existing
from ds_minimodel.evaluation import task_of
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import Model, load_into, materialise
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer


def _load_body(folder: str | Path) -> BodyArtifact:
    """Load a body or task model.

    Raises:
        UserError: As of `load_body`, and where there is no such kind of task.
    """
    body = load_body(folder)
    if body.task:
        task_of(folder, body)
    return body


def save_plugged(body_folder: str | Path, folder: str | Path, out: str | Path) -> None:
    """Write a language anew as one over another body.

    That may be a body of other weights, such as what training on instructions made of the
    language's body. Whether the embeddings are of use there is for the caller to know.

    Args:
        body_folder: The other body.
        folder: The language.
        out: Folder that is written. Its manifest says what the language was trained over
            (`trained_over`).

    Raises:
        UserError: They do not fit, or the language is over this body already.
    """
    out = Path(out)
    body = _load_body(body_folder)
    refuse_existing(out)
    adaptation, _ = open_pack(folder)
    if adaptation.space == body.space:
        raise UserError(
            f"{folder}: is over this body already; `ds-minimodel export-hf` writes both as one "
            "model"
        )
    check_fit(folder, adaptation, body)
    if out.resolve().is_relative_to(Path(folder).resolve()):
        raise UserError(
            f"{out}: lies in {folder}, which is copied there; choose a place outside of it"
        )
    # Facts that callers have added are kept; all else is written anew.
    facts = read_artifact(folder, AdaptationManifest).model_extra or {}
    facts = {**facts, "trained_over": adaptation.space}
    moved = replace(adaptation, space=body.space)
    save_adaptation(out, moved, tokenizer=folder, config=body.config, **facts)


def plugged_module(body: BodyArtifact, language: Adaptation, strength: float = 1.0) -> Model:
    """Return the module of a body or mini-model with a language plugged in.

    It is in evaluation mode and fp32. Body and language stay as they are.

    Args:
        body: Of a model or mini-model.
        language: With all of its rows (`whole`).
        strength: Share of what the body has learned that it keeps.

    Raises:
        UserError: They do not fit.
    """
    if body.task is not None:
        raise UserError("a task model has a head of its own; export-hf writes it for transformers")
    if language.num_base:
        raise UserError(
            f"the language {language.language} has only its new tokens; give `whole` of it and the "
            "model's language"
        )
    check_space(f"the language {language.language}", language.space, body.space)
    with torch.device("meta"):
        model = OBJECTIVES[body.objective].model(body.config, language.rows, body.head_depths)
    materialise(model, torch.float32)
    load_into(model, body.tensors, "body.")
    plug(model, language, body, strength=strength)
    return model.eval()


def open_pack(
    folder: str | Path, body: BodyArtifact | None = None, body_folder: str | Path | None = None
) -> tuple[Adaptation, Tokenizer]:
    """Load a language and its tokenizer, all files verified.

    Args:
        folder: The language; or a model, for the language that it has.
        body: That it is to fit.
        body_folder: Where `body` lies. With it the language has all rows, also those that it takes
            from its model.

    Raises:
        UserError: Its parts disagree, or it does not fit `body`.
    """
    tokenizer = open_tokenizer(folder)
    if is_model(folder):
        language = load_model(folder)[1]
        if body is not None:
            check_space(folder, language.space, body.space)
    else:
        language = load_adaptation(folder, None if body is None else body.space)
    if body is not None:
        check_fit(folder, language, body)
    if body_folder is not None:
        language = whole(language, load_model(model_below(body_folder))[1])
    return language, tokenizer
