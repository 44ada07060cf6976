"""A language added to somebody's model by one command; run.py tells it from top to bottom.

config.py: what a call asks for. call.py: the folder of a call. recipe.py, vocabulary_size.py and
length.py: what is chosen. strength.py, by the looks of looking.py: how much of what was learned is
written. written.py: the models. encoder.py: the same of a finished encoder, from pairs.
"""
