"""How cost grows: the fits, and the script end to end on small stores and a small model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel.benchmark.growth import SHARD_TOKENS, fit
from ds_minimodel.data.store import TokenStore
from scripts.growth import sparse_store

ROOT = Path(__file__).parents[2]


def test_a_fit_finds_a_line_and_a_power():
    of_line = fit([1, 2, 4, 8], [5, 7, 11, 19])
    assert (of_line.a, of_line.b, of_line.r2) == pytest.approx((3, 2, 1))
    assert fit([1, 10, 100], [3, 300, 30_000]).slope == pytest.approx(2)


def test_a_sparse_store_is_a_store_that_takes_no_place(tmp_path):
    shards = sparse_store(tmp_path / "store", 0.3, 50_000)
    store = TokenStore(tmp_path / "store")
    assert store.num_tokens == shards * SHARD_TOKENS
    assert not store.read(store.num_tokens - 512, store.num_tokens).any()
    assert store.document(store.num_documents - 1)[1] == store.num_tokens
    used = sum(512 * path.stat().st_blocks for path in (tmp_path / "store").iterdir())
    assert used < 0.01 * sum(path.stat().st_size for path in (tmp_path / "store").iterdir())


def test_parts_are_measured_one_after_another_into_one_page(tmp_path):
    out = tmp_path / "growth"
    small = "--axes depth --points 1 --tokens 128 --repeats 1 --gigabytes 0.13 0.26"
    for parts in ("store loader", "steps"):
        command = [sys.executable, str(ROOT / "scripts/growth.py"), "--parts", *parts.split(), *small.split()]
        ended = subprocess.run(
            [*command, "--out", str(out)], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert ended.returncode == 0, ended.stderr
    found = json.loads(out.with_suffix(".json").read_text())["parts"]
    assert [row["shards"] for row in found["store"]["rows"]] == [1, 2]
    assert {row["step"] for row in found["steps"]["rows"]} == {"pretrain", "adapt-full"}
    page = out.with_suffix(".md").read_text()
    assert "| loader and masking: at most 1 % of a step |" in page and "| 2 adapt, depth 2 |" in page
    assert out.with_suffix(".png").stat().st_size > 1000
    assert not list(tmp_path.glob("growth-*")), "stores are removed"
