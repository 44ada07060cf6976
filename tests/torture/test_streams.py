"""Compressed text of several streams at fixed seeds: the bytes of `gzip -dc`, `xz -dc`, `zstd -dc`, or a refusal."""

import random

from .streams import SUFFIXES, make_file, stream_outcome


def test_text_is_read_as_its_tool_reads_it(tmp_path):
    outcomes = {}
    for seed in range(300):
        path = make_file(random.Random(seed), tmp_path)
        outcomes.setdefault((path.suffix, stream_outcome(path)), []).append(seed)
    assert outcomes.keys() == {(suffix, outcome) for suffix in SUFFIXES for outcome in ("right", "refused")}, outcomes
