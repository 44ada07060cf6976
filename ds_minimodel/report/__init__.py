"""Reports of runs: curves, compute to near-maximal performance, tables, plots, the page."""
