"""A pickle module for `torch.load` that runs no code of the file.

Tensors, ordered dicts and argparse.Namespace are made; any other class or function that a file names becomes
an `Inert` object, which does nothing and keeps the attributes it is given. Checkpoints of fairseq need this:
torch's own weights_only refuses a file for one foreign class in it.
"""

import pickle
from typing import IO, Any

_SAFE = {
    ("collections", "OrderedDict"),
    ("argparse", "Namespace"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
}


class Inert:
    """Stands for an object of a class that is not loaded."""

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *_arguments: Any, **_keywords: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def append(self, _item: Any) -> None:
        pass


class Unpickler(pickle.Unpickler):
    """Loads what _SAFE names, and Inert in the place of everything else."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if (module, name) in _SAFE else Inert


def load(file: IO[bytes], **settings: Any) -> Any:
    """pickle.load, which torch.load calls."""
    return Unpickler(file, **settings).load()
