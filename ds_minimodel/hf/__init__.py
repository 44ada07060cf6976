"""Hugging Face: exports, model cards, chat data, what a decoder writes by itself and what it keeps."""
