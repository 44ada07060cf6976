"""Sizes at which a benchmark takes seconds."""

TINY = "model.hidden_size=32 model.num_heads=2 model.ffn_size=64 model.num_layers=3".split()


TINY += "tokenizer.vocab_size=100 mini.depth=1 mini.new_layers=1".split()
