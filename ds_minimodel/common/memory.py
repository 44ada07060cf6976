"""What the C library does with freed blocks: return them to the system, or keep them."""

import contextlib
import contextvars
import ctypes
import gc
from collections.abc import Iterator
from typing import Any

# Options of glibc's mallopt: from how many bytes a block is mapped by itself, and how many
# blocks may be.
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_LARGE_BLOCK = 1 << 20
_MANY_BLOCKS = 1 << 16


def _call(name: str, *values: int) -> None:
    """Call a function of glibc; do nothing where the C library is another one."""
    function: Any = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*values)


def return_blocks() -> None:
    """Give large blocks back as soon as they are freed.

    Reading a model allocates and frees blocks of all sizes, and a heap keeps most of them. glibc
    does not take a freed aligned block for one of the same size (its bug 14581), by which the heap
    grew by a model's size in an export.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BLOCK)
    _call("mallopt", _M_MMAP_MAX, _MANY_BLOCKS)


_keeps = contextvars.ContextVar("keeps", default=False)


@contextlib.contextmanager
def keeping_blocks() -> Iterator[None]:
    """Keep freed blocks, within the context, for passes that allocate the same again.

    It saves the time in which the system fills the pages of a new block with zeros. Within another
    one it does nothing.
    """
    if _keeps.get():
        yield
        return
    trim()
    _call("mallopt", _M_MMAP_MAX, 0)
    token = _keeps.set(True)
    try:
        yield
    finally:
        _keeps.reset(token)
        return_blocks()


def trim() -> None:
    """Collect garbage (modules are in cycles), and give the heap's free memory to the system."""
    gc.collect()
    _call("malloc_trim", 0)
