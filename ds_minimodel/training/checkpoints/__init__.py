"""Checkpoints: written beside the training, complete or absent.

They are restored at any stage and number of ranks.
"""
