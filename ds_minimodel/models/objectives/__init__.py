"""Training objectives: one declaration each. objective.py has the declaration's type."""

from ds_minimodel.models.objectives.objective import (
    CausalLm,
    MaskedLm,
    Objective,
    Sampler,
    TextObjective,
)
from ds_minimodel.models.objectives.sentence import Sentence

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective for objective in (MaskedLm(), CausalLm(), Sentence())
}

__all__ = ["OBJECTIVES", "Objective", "Sampler", "TextObjective"]
