"""ds_minimodel: extend a pretrained language model to new languages by mini-model adaptation."""

__version__ = "0.1.0"
