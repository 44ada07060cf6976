"""A language is added to somebody's model by one command; run.py tells it from top to bottom.

config.py declares the options, and call.py keeps the folder of a call. recipe.py,
vocabulary_size.py and length.py choose the recipe. strength.py chooses how much of what was learned
is written, by comparisons of looking.py; written.py writes the models. encoder.py is the way of a
finished encoder, which learns from pairs.
"""
