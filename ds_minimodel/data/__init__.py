"""Text: raw files, vocabularies, token stores and samples."""
