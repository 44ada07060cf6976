"""Ranks under the deepspeed launcher, started by the command line: exit codes and signals come through."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from ds_minimodel.common.files import read_json_lines
from ds_minimodel.engine.checkpoints.storage import step_of
from ds_minimodel.engine.ranks import launch
from ds_minimodel.pipeline.order import STEPS
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.recipe.reading import load_recipe

RECIPE = """
workdir: {folder}/run
seed: 1
systems: [bl_base]
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocab_size: 40}}
data: {{blocks: complete, workers: 1, text: {{en: {folder}/text.txt, xx: {folder}/text.txt}}}}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 32}}
mini: {{depth: 1, new_layers: 1, depths: [1, 2]}}
pretrain: {{steps: 2000, batch_size: 8, seq_length: 32, lr: 1e-3, warmup_steps: 2}}
build_mini: {{seq_length: 32}}
adapt: {{seq_length: 32}}
engine: {{zero_stage: 1, precision: fp32, micro_batch_size: 4}}
"""


def start(recipe, *overrides, ranks=2):
    command = [sys.executable, "-m", "ds_minimodel", "pretrain", recipe, *overrides, "--ranks", str(ranks)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe whose text is tokenised and whose pretraining takes long enough to be disturbed."""
    folder, rng = tmp_path_factory.mktemp("launch"), random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(50)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(200)))
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder))
    for step in ("tokenizer", "prepare"):
        run_step(STEPS[step], load_recipe(path, []))
    return path


def wait_for(metrics, process):
    """Until the run has taken a step."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if read_json_lines(metrics):
            return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def refused(recipe):
    """A command whose mistake only the ranks can see; it runs beside the other test."""
    return start(recipe, "systems=[bl_small]", "pretrain.batch_size=3")


def test_a_signal_reaches_the_ranks_which_save(recipe, refused):
    """SIGTERM; SIGINT of one process is in tests/pipeline/test_pipeline.py."""
    process = start(recipe, "systems=[bl_base]")
    run = recipe.parent / "run" / "pretrain" / "bl_base" / "run"
    wait_for(run / "metrics.jsonl", process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert errors.count("stopped after step") == errors.count("stopping after this step") == 1
    assert "Traceback" not in errors
    assert (run / "checkpoints" / (run / "checkpoints" / "latest").read_text()).is_dir()
    assert len(children) >= 3  # launcher and ranks
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not list((recipe.parent / "run").glob(".stopped*"))


def test_ranks_save_and_end_when_who_started_them_is_killed(recipe, refused):
    run = recipe.parent / "run" / "pretrain" / "minijoint" / "run"
    process = start(recipe, "systems=[minijoint]", ranks=1)
    wait_for(run / "metrics.jsonl", process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert "stopped after step" in process.stderr.read()
    assert step_of((run / "checkpoints" / "latest").read_text()) > 0


def test_a_signal_whose_save_fails_is_no_success(recipe, refused):
    process = start(recipe, "systems=[multijoint]", ranks=1)
    run = recipe.parent / "run" / "pretrain" / "multijoint" / "run"
    wait_for(run / "metrics.jsonl", process)
    (run / "checkpoints").write_text("in the way")
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1, errors
    assert "checkpoints: cannot write: a file is in the place of a folder" in errors and "Traceback" not in errors
    assert "the ranks ended without saving; the same command goes on" in errors


def test_a_mistake_that_the_ranks_find_is_a_users_mistake(refused):
    errors = refused.communicate(timeout=120)[1]
    assert refused.returncode == 2, errors
    said = [line for line in errors.splitlines() if "batch_size 3" in line]
    assert errors.splitlines() == said and len(said) == 1
    assert said[0].startswith("ds-minimodel: batch_size 3 cannot be divided among 2 ranks")


def test_threads_do_not_spin_beside_other_work(monkeypatch):
    """And do where nobody keeps a core busy, or where that is not told."""
    cores = sorted(os.sched_getaffinity(0))

    def tell(*texts):
        texts = itertools.cycle(texts)
        monkeypatch.setattr(launch, "STAT", SimpleNamespace(read_text=lambda: next(texts)))

    def ticks(user, idle):
        return "".join(f"cpu{core} {user} 0 0 {idle} 0 0 0 0 0 0\n" for core in cores)

    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    for name in (*launch.CPU, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    spins = []  # of the process that this one would become
    monkeypatch.setattr(os, "execve", lambda *given: spins.append(given[2]["GOMP_SPINCOUNT"]))
    tell(ticks(0, 0), ticks(90, 10))
    assert launch.busy_cores(0) == pytest.approx(0.9 * len(cores))
    assert launch.cpu_settings() == {**launch.CPU, "GOMP_SPINCOUNT": "0"}
    for ranks in (1, len(cores) + 1):  # as many others as cores may be starting
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        launch.restart_with_cpu_settings()
    assert spins == ["0", launch.CPU["GOMP_SPINCOUNT"]]
    for texts in ([ticks(0, 0), ticks(1, 9999)], ["cpu 1 2\nintr 5\n"], [ticks(0, 0)]):  # the last as gVisor has it
        tell(*texts)
        assert launch.busy_cores(0) < 0.5 and launch.cpu_settings() == launch.CPU
