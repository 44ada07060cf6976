"""Vocabularies: tokenizers, their training, what is added to a base's."""
