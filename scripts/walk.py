"""Print the files of the package that one line of text passes on its way through `extend`, in the
order of its walk.

    PYTHONPATH=. python scripts/walk.py

The line is in some documents of a made-up text that a tiny Llama learns, all in one process. A file
counts where one of its functions is called with the line or gives it, as its words in their order
or as its token ids: in text, bytes or arrays, or in lists, mappings and dataclasses of these. What
leads to it without holding it (a path, a store, an iterator) does not count, nor do hidden states.
Beside a file stands the first such function.
"""

import sys
import tempfile
import threading
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.run import extend
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.foreign_models import save_llama
from tests.pipeline.conftest import make_world

PACKAGE = sys.modules["ds_minimodel"].__path__[0]
LINE = "zvukel brolmap frestig brolmap"  # ids that do not rise, as a range does
passed: dict[str, str] = {}  # file: function
ids: list[bytes] = []  # of the line, uint16, by each vocabulary


def holds(value: Any, depth: int = 3) -> bool:
    """Whether the line is in a value, or in what it holds, so deep."""
    if isinstance(value, str):
        return LINE in " ".join(value.split())
    if isinstance(value, bytes):
        return holds(value.decode(errors="ignore")) or any(own in value for own in ids)
    if isinstance(value, torch.Tensor) and value.is_cpu and not value.is_floating_point():
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu" and holds(value.astype("<u2").tobytes())
    if isinstance(value, dict):  # of counted words, too
        value = [
            " ".join(word for word in LINE.split() if {word, f" {word}"} & value.keys()),
            *value,
            *value.values(),
        ]
    elif is_dataclass(value) and not isinstance(value, type):
        value = [*vars(value).values()]
    if not isinstance(value, list | tuple | set) or not depth:
        return False
    text = " ".join(part for part in value if isinstance(part, str))
    numbers = np.array([part for part in value if isinstance(part, int)])
    return holds(text) or holds(numbers) or any(holds(part, depth - 1) for part in value)


def note(frame: FrameType, event: str, given: Any) -> None:
    """What sys.setprofile calls: `given` is what a function gives."""
    code = frame.f_code
    file = frame.f_code.co_filename
    if event in ("call", "return") and file.startswith(PACKAGE) and file not in passed:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if holds([frame.f_locals.get(name) for name in names] if event == "call" else given):
            passed[file] = code.co_qualname


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_world(folder)
        text = folder / "xx.txt"
        pages = enumerate(text.read_text().split("\n\n") * 4)
        text.write_text("\n\n".join(f"{LINE}\n" * (at % 5 == 0) + page for at, page in pages))
        theirs = save_llama(folder / "en.txt", folder / "theirs", "$A")
        for out in ("once", "again"):  # the second time the line's ids are known
            if ids:
                threading.setprofile(note)
                sys.setprofile(note)
            call = ExtendConfig(
                model=str(theirs),
                text=[str(text)],
                language="xx",
                out=str(folder / out),
                tokens=20_000,
            )
            extend(call, say=lambda _: None)
            vocabularies = (
                open_tokenizer(folder / out / "run/tokenizer" / language)
                for language in ("en", "xx")
            )
            ids[:] = [
                np.array(vocabulary.encode([LINE])[0], "<u2").tobytes()
                for vocabulary in vocabularies
            ]
    sys.setprofile(None)
    for number, (file, function) in enumerate(passed.items(), 1):
        print(f"{number:3} {file.removeprefix(PACKAGE)[1:]:34} {function}")


if __name__ == "__main__":
    main()
