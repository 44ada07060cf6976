"""Measurements of this project: `python -m benchmarks PART`; README.md beside this file has what
came out.
"""
