"""Environment of the tests and of every process that they start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")       # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
