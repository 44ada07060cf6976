"""The steps of the pipeline, one short file each.

A step reads artifacts and writes one; no step imports another.
"""
