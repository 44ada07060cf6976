"""Artifacts on disk: models as transformers reads them, adaptations, mini-models, task models.

models.py has models, adaptation.py what was learned over one, base.py foreign models that are
referred to.
"""
