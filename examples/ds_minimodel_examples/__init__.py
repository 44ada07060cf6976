"""Example data for the pipeline: real text and labelled tasks in several languages, from Debian
packages.
"""
