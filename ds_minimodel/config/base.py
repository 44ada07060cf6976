"""The model that a recipe starts from where it pretrains none.

It is a foreign one, or one that step 1 has made.
"""

from dataclasses import dataclass
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.models import BodyConfig


@dataclass(frozen=True)
class Base:
    """Facts of a recipe's base.

    Attributes:
        config: architecture of its body.
        language: the language that it was trained on, or UNKNOWN_LANGUAGE.
        vocab_size: rows of its embeddings.
    """

    config: BodyConfig
    language: str
    vocab_size: int


def read_base(model: str, pooling: str | None = None) -> Base:
    """Read what a recipe must know of its base; no weights are read.

    Args:
        model: a folder, a GGUF file or a name on the Hub.
        pooling: "mean" or "cls", how an encoder that does not say it gives vectors.

    Raises:
        UserError: `model` is no model, or has other heads than one after its last layer.
    """
    # This is imported here because it loads torch, which takes seconds.
    from ds_minimodel.artifacts.models import ModelManifest, is_model

    if is_model(model):
        manifest = read_artifact(model, ModelManifest)
        config = manifest.body.architecture
        depths = manifest.body.head_depths
        if depths != [config.num_layers]:
            raise UserError(
                f"base: {model} has heads after {depths} layers; a base has one, after its last "
                f"({config.num_layers})"
            )
        return Base(config, manifest.language, manifest.rows)
    if (Path(model) / "manifest.json").exists():
        raise UserError(
            f"base: {model} is no model; give one as step 1 makes it, or as transformers reads it"
        )
    from ds_minimodel.artifacts.base import config_of

    foreign = config_of(model, pooling)
    return Base(foreign.config, UNKNOWN_LANGUAGE, foreign.hf_config.vocab_size)
