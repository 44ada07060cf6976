"""Hugging Face: foreign models read and proved, exports, model cards, what a model writes."""
