"""Language packs and task models in use: looked at, checked, plugged together, and asked for predictions."""
