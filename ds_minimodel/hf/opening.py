"""Foreign models opened by their files; their weights by transformers' names."""

from collections.abc import Iterable
from pathlib import Path

from ds_minimodel.hf.gguf import GgufFile
from ds_minimodel.hf.lazy import LazyTensors
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.source import Folder, Source, by_hf_names
from ds_minimodel.models import BodyConfig


def source_of(model: str | Path) -> Source:
    """Return the files of a model, which is a folder or a GGUF file."""
    path = Path(model)
    return GgufFile(path) if path.is_file() else Folder(path)


def open_weights(
    path: Path, architecture: Architecture, config: BodyConfig, names: Iterable[str]
) -> LazyTensors:
    """Open the tensors of a foreign model that parameters of a LanguageModel are made of.

    Args:
        path: of the model.
        architecture: its names.
        config: of its body.
        names: of the parameters.

    Returns:
        The tensors by transformers' names; those that the model lacks are left out.
    """
    headers, _ = source_of(path).headers(architecture, config)
    hf_names = {part for parts in architecture.parts_of(names, config).values() for part in parts}
    return LazyTensors(by_hf_names(hf_names, headers, architecture.prefix))
