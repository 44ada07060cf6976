"""FLOPs of every step, by the paper's formulas and as executed."""
