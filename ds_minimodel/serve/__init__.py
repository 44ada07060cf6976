"""Language packs and task models in use: show, check and plug them together, and ask them for predictions."""
