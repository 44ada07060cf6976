"""Write a model or task model with a language as a folder for `from_pretrained`.

Updates are merged as tensors are written, one after the other. All tensors get a given type, or
that of the model's embeddings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ds_minimodel.artifacts.adaptation import (
    check_fit,
    check_space,
    check_strength,
    load_adaptation,
    merged,
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
    model_tensors,
)
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, read_artifact, refuse_existing, write_json
from ds_minimodel.common.vocabulary import Vocabulary, VocabularyManifest
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.evaluation import task_of
from ds_minimodel.export.card import adapter_card, base_of, finished_card, model_card
from ds_minimodel.export.finished import write_finished, write_modules
from ds_minimodel.hf.lazy import LazyTensors, lazy_entries, save_tensors
from ds_minimodel.hf.names import architecture_of
from ds_minimodel.hf.source import CARD, CONFIG, WEIGHTS
from ds_minimodel.hf.tokenizers import token_ids, write_tokenizer
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.low_rank import is_low_rank
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.layout import CALL, RECIPE, WorkdirLayout
from ds_minimodel.tokenizers.tokenizer import tokenizer_in


def export_hf(  # noqa: PLR0913, its arguments are the options of the command
    artifact: str | Path,
    out: str | Path,
    language: str | Path | None = None,
    depth: int | None = None,
    dtype: str | None = None,
    pool: str | None = None,
    strength: float = 1.0,
    text_license: str | None = None,
) -> None:
    """Write a model, mini-model or task model with a language as a Hugging Face folder.

    A model becomes RobertaForMaskedLM, or BertForMaskedLM where it is BERT's, with its head of
    `depth` and the layers below it. A task model becomes the class of its kind, such as
    RobertaForSequenceClassification. A folder that `extend` made stands for the model that it added
    the language to. A model with a finished head comes out as the folder that it was taken from,
    with the language's vocabulary and embeddings (export/finished.py).

    Args:
        artifact: Folder of the model, or one that `extend` made.
        out: Folder to write, which must not exist.
        language: Folder of an adaptation; default: the model itself, or what `extend` added.
        depth: Layers below the language-model head; default: those of the deepest.
        dtype: Of the weights, as in ops/precision.py; default: the model's.
        pool: "mean" or "first", by which sentence-transformers makes vectors of length 1 of an
            encoder's last states.
        strength: Share of what the body has learned that it keeps.
        text_license: Of the text that the pack was trained on, for the card.

    Raises:
        UserError: A part is missing or does not fit, or transformers has no such bodies.
    """
    artifact, language = _parts_of(Path(artifact), language)
    out = Path(out)
    refuse_existing(out)
    check_strength(strength)
    body = load_body(artifact)
    model_folder = model_below(artifact)
    base = load_model(model_folder)[1]
    pack_folder = Path(language or model_folder)
    added = load_model(pack_folder)[1] if is_model(pack_folder) else load_adaptation(pack_folder)
    check_space(pack_folder, added.space, body.space)
    adaptation = whole(added, base)
    check_fit(pack_folder, adaptation, body)
    tokenizer = tokenizer_in(pack_folder)
    vocabulary = read_artifact(tokenizer, VocabularyManifest).vocabulary(tokenizer)
    if pool is not None and pool not in ("mean", "first"):
        raise UserError(f"--pool {pool}: there are mean, first")
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: there are {', '.join(DTYPES)}")
    if pool and body.config.causal:
        raise UserError(f"{artifact}: a decoder; --pool is for vectors of an encoder")
    head = body.config.head
    if head is not None and (pool or depth is not None or not is_model(artifact)):
        raise UserError(
            f"{artifact}: has a finished head; export the model itself, without --pool and --depth"
        )
    given_type = DTYPES[dtype] if dtype else None
    with atomic_folder(out, is_new=True) as temporary:
        if head is not None:
            class_name = write_finished(
                temporary,
                model_folder,
                body,
                adaptation,
                tokenizer,
                strength=strength,
                dtype=given_type,
            )
            card = finished_card(pack_folder, model_folder, class_name, head)
        else:
            model = exported(artifact, body, adaptation, vocabulary, depth=depth, strength=strength)
            weights_type = given_type or lazy_entries(base.embeddings)["tokens"].dtype
            config = body.config.with_layers(model.num_layers)
            ids = write_tokenizer(tokenizer, temporary, config, is_task=body.task is not None)
            _write_model(temporary, model, ids, weights_type, artifact)
            if pool:
                pooling = SentenceHead(
                    pooling="mean" if pool == "mean" else "cls",
                    max_length=config.max_positions,
                    normalises=True,
                )
                write_modules(temporary, pooling, config.hidden_size)
            card = model_card(
                pack_folder,
                model_folder,
                class_name=model.class_name,
                num_layers=model.num_layers,
                task=(body.task or {}).get("name"),
                text_license=text_license,
            )
        (temporary / CARD).write_text(card, encoding="utf-8")


def _write_model(
    folder: Path, model: Exported, ids: dict[str, Any], dtype: torch.dtype, artifact: Path
) -> None:
    """Write config.json with special `ids`, and the weights in a type."""
    config = {**model.config, **ids, "dtype": str(dtype).removeprefix("torch.")}
    write_json(folder / CONFIG, config)
    save_tensors(folder / WEIGHTS, model.in_type(dtype, artifact))


def export_adapter(
    model: str | Path,
    out: str | Path,
    adaptation: str | Path | None = None,
    strength: float = 1.0,
    text_license: str | None = None,
) -> None:
    """Write a low-rank adaptation for PEFT, beside its tokenizer.

    Args:
        model: Folder of the base, or one that `extend` made.
        out: Folder to write, which must not exist.
        adaptation: Its folder; default: what `extend` added.
        strength: As of `export_hf`.
        text_license: As of `export_hf`.

    Raises:
        UserError: The adaptation has no LoRA, or something that an adapter cannot hold.
    """
    model, adaptation = _parts_of(Path(model), adaptation)
    if adaptation is None:
        raise UserError(f"{model}: name the adaptation (--pack), or give a folder that extend made")
    body = load_body(model)
    learned = load_adaptation(adaptation, body.space)
    if learned.architecture is None or not any(map(is_low_rank, learned.update)):
        raise UserError(f"{adaptation}: has no LoRA of the body, which an adapter is")
    if not learned.num_base:
        raise UserError(
            f"{adaptation}: all of its token embeddings are new, which an adapter cannot hold; "
            "leave --adapter out"
        )
    if "bias" in learned.embeddings:
        raise UserError(
            f"{adaptation}: has a bias of the output, which PEFT does not read; leave --adapter out"
        )
    check_strength(strength)
    refuse_existing(out)
    base = base_of(Path(model))
    save_adaptation(
        out,
        learned,
        tokenizer=adaptation,
        config=body.config,
        strength=strength,
        adapter=base,
    )
    ending = OBJECTIVES[body.objective].hugging_face_class
    card = adapter_card(
        Path(adaptation),
        model,
        class_name=f"AutoModel{ending}",
        base=base["base_model_name_or_path"],
        text_license=text_license,
    )
    (Path(out) / CARD).write_text(card, encoding="utf-8")


def _parts_of(artifact: Path, language: str | Path | None) -> tuple[Path, str | Path | None]:
    """Return (model, adaptation) of a folder that `extend` made, else the two arguments."""
    if not (artifact / CALL).is_file():
        return artifact, language
    recipe = load_recipe(artifact / RECIPE)
    layout = WorkdirLayout(artifact / "run")
    (system,) = recipe.chosen_systems
    (target,) = recipe.languages.targets
    return layout.model(system), language or layout.adapt(system, target) / "pack"


@dataclass(frozen=True)
class Exported:
    """A model in transformers' terms.

    Attributes:
        class_name: Of transformers.
        num_layers: Of the body.
        config: Content of config.json.
        tensors: By transformers' names.
    """

    class_name: str
    num_layers: int
    config: dict[str, Any]
    tensors: LazyTensors

    def in_type(self, dtype: torch.dtype, where: str | os.PathLike[str] = "") -> LazyTensors:
        """Return its tensors cast to a type.

        Raises:
            UserError: A number is outside of the type's range; `where` is the model's folder.
        """

        def cast(name: str, tensor: Tensor) -> Tensor:
            numbers = tensor.to(dtype)
            if dtype == torch.float16 and not numbers.isfinite().all():
                raise UserError(
                    f"{where}: {name} has numbers larger than fp16 has; give --dtype bf16"
                )
            return numbers

        entries = self.tensors.entries.items()
        return LazyTensors({name: lazy.map(partial(cast, name), dtype) for name, lazy in entries})

    def module(self, dtype: torch.dtype = torch.float32) -> Any:
        """Return transformers' module with weights of a type; its rotary buffers stay in fp32."""
        transformers.utils.logging.disable_progress_bar()
        model_class = getattr(transformers, self.class_name)
        config = model_class.config_class.from_dict(self.config)
        return model_class.from_pretrained(
            None, config=config, state_dict=dict(self.in_type(dtype)), dtype=dtype
        )


def exported(
    artifact: str | Path,
    body: BodyArtifact,
    language: Adaptation,
    vocabulary: Vocabulary,
    depth: int | None = None,
    strength: float = 1.0,
) -> Exported:
    """Return a model with a language in transformers' terms.

    Args:
        artifact: Folder of the model, for messages.
        body: Of the model.
        language: Fits the body, and has all rows.
        vocabulary: Of the language.
        depth: As of `export_hf`.
        strength: As of `export_hf`.

    Raises:
        UserError: Transformers has no such model, or this one has no head of that depth.
    """
    architecture = architecture_of(body.config.kind)
    if architecture is None:
        raise UserError(
            f"{artifact}: Hugging Face's library has no bodies of kind {body.config.kind}"
        )
    tensors = {f"body.{name}": lazy for name, lazy in merged(body, language, strength)}
    num_layers = body.config.num_layers
    of_task: dict[str, object] = {}
    if body.task is not None:
        if depth is not None:
            raise UserError(
                f"{artifact}: a task model has no language-model head of depth {depth}; leave "
                "--depth out"
            )
        kind, labels = task_of(artifact, body)
        ending = kind.hugging_face_class
        of_task = kind.hugging_face_config(labels)
        head = architecture.task_head(body.config, kind.head_names)
        # The head of the task comes with them.
        tensors = {**lazy_entries(body.tensors), **tensors}
    else:
        num_layers = max(body.head_depths, default=0) if depth is None else depth
        if num_layers not in body.head_depths:
            depths = list(body.head_depths)
            raise UserError(
                f"{artifact}: no language-model head of depth {num_layers}; it has heads of "
                f"{depths}"
            )
        ending = OBJECTIVES[body.objective].hugging_face_class
        head = architecture.language_model_head(num_layers)
    class_name = architecture.classes + ending
    if ending not in architecture.endings:
        raise UserError(
            f"{artifact}: Hugging Face's library has no {class_name} that computes what this model "
            "does"
        )
    config = body.config.with_layers(num_layers)
    # Layers above the head are left out.
    used = {
        name: lazy
        for name, lazy in tensors.items()
        if not name.startswith("body.layers.") or int(name.split(".")[2]) < num_layers
    }
    used |= model_tensors({}, language.embeddings)
    facts = {
        "architectures": [class_name],
        **architecture.config_json(config, language.rows),
        **token_ids(vocabulary),
        "dtype": "float32",
        **of_task,
    }
    return Exported(
        class_name=class_name,
        num_layers=num_layers,
        config=facts,
        tensors=LazyTensors(architecture.to_hf(used, config, head)),
    )
