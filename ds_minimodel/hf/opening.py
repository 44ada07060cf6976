"""Foreign models opened: by their files, and their weights by transformers' names."""

from collections.abc import Iterable
from pathlib import Path

from ds_minimodel.hf.gguf import GgufFile
from ds_minimodel.hf.lazy import LazyTensors
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.source import Folder, Source, by_hf_names
from ds_minimodel.models import BodyConfig


def source_of(model: str | Path) -> Source:
    """The files of a folder or a GGUF file."""
    return GgufFile(Path(model)) if Path(model).is_file() else Folder(Path(model))


def open_weights(
    path: Path, architecture: Architecture, config: BodyConfig, names: Iterable[str]
) -> LazyTensors:
    """The tensors of a foreign model that stand behind the parameters `names` of ours, by
    transformers' names.
    """
    headers, _ = source_of(path).headers(architecture, config)
    theirs = {part for parts in architecture.parts_of(names, config).values() for part in parts}
    return LazyTensors(by_hf_names(theirs, headers, architecture.prefix))
