"""The vocabulary of the tests of data, and small checkpoints of Hugging Face's."""

from ..data.conftest import corpus, text_file, tokenizer_folder  # noqa: F401
