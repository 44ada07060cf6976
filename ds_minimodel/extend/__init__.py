"""Add a language to a model by one command: the whole story of `extend`, told in run.py."""
