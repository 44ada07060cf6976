"""What lies on disk: models as transformers reads them, adaptations, mini-models, models of tasks.

models.py has models, adaptation.py what was learned over one, names/ their parameters' names in transformers.
"""
