"""What a run cost and what it bought: FLOPs, compute to near-maximal performance, tables, plots, report."""
