"""The vocabulary of the tests of data."""

from ..data.conftest import corpus, text_file, tokenizer, tokenizer_folder  # noqa: F401
