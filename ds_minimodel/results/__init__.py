"""What a run cost and what it bought: curves, compute to near-maximal performance, tables, plots, the report."""
