"""Exports: folders that transformers and PEFT read, and their cards."""
