"""Models of others as they lie on disk: folders and GGUF files, names of tensors, tokenizers."""
