"""The text and the vocabularies of the tests of data."""

from ..data.conftest import (  # noqa: F401
    byte_folder,
    corpus,
    small_chunks,
    store_folder,
    text_file,
    tokenizer,
    tokenizer_folder,
)
