"""Costs and results of runs: curves, compute to near-maximal performance, tables, plots, the
report.
"""
