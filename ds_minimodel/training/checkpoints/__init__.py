"""Checkpoints: written beside the training, complete or absent, restored at any stage and number of
ranks.
"""
