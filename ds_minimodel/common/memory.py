"""What the C library does with blocks that are freed: give them back to the system, or keep them
for the next pass.
"""

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from typing import Any

_THRESHOLD, _MAPPED = -3, -4  # of glibc's mallopt: M_MMAP_THRESHOLD, bytes; M_MMAP_MAX, blocks
_LARGE, _MANY = 1 << 20, 1 << 16


def _call(name: str, *values: int) -> None:
    function: Any = getattr(ctypes.CDLL(None), name, None)  # glibc's alone
    if function is not None:
        function(*values)


def return_blocks() -> None:
    """Give large blocks back as soon as they are freed.

    What reads a model makes and frees blocks of all sizes, and a heap keeps most of them: glibc
    does not find an aligned block again for one of the same size (its bug 14581), so that it grew
    by a model's size in an export.
    """
    _call("mallopt", _THRESHOLD, _LARGE)
    _call("mallopt", _MAPPED, _MANY)


@contextlib.contextmanager
def keeping_blocks() -> Iterator[None]:
    """Keep what is freed, within the context, for passes that make the same again: pages of a block
    that comes from the system are filled with zeros first.
    """
    trim()
    _call("mallopt", _MAPPED, 0)
    try:
        yield
    finally:
        return_blocks()


def trim() -> None:
    """Collect garbage (modules are in cycles), and give the heap's free memory back to the
    system.
    """
    gc.collect()
    _call("malloc_trim", 0)
