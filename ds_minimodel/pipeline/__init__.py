"""The pipeline: its steps in their order, checked ahead, run, and looked at."""
