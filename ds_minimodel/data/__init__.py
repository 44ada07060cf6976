"""Text: raw files, vocabularies, token stores and the samples of masked language modelling."""
