"""A run that SIGKILLs itself in its second save, which a thread does, in a process of its own."""

import os
import signal
from pathlib import Path
from unittest import mock

import torch
from synthetic import run_config, train

from ds_minimodel.training.checkpoints import storage
from ds_minimodel.training.ranks.world import join_ranks

RUN = run_config(zero_stage=1, checkpoint_every=1, keep_last=3)
# Where it dies: the function, and how many calls of it come before. A save writes two files.
PLACES = {
    "writing": (torch, "save", 3),
    "verifying": (storage, "sha256_of_file", 3),
    "listing": (storage, "write_json", 1),
    "renaming": (Path, "rename", 1),
    "pointing": (storage, "atomic_write", 1),
}


def killed_in_second_save(folder, place):
    owner, name, calls_before = PLACES[place]
    original, calls = getattr(owner, name), []

    def call_or_die(*arguments, **options):
        if len(calls) == calls_before:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(arguments)
        return original(*arguments, **options)

    with mock.patch.object(owner, name, call_or_die):
        train(join_ranks(), folder, RUN)
