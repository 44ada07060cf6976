"""Weights & Biases and MLflow, the real ones without a network, and hyperparameters in TensorBoard."""

import time
from dataclasses import replace

import pytest
from synthetic import STEPS, model, run_config, signal_self, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.engine import monitors
from ds_minimodel.engine.ranks.signals import Stopped

FLAWS = {"log": lambda *_: 1 / 0, "end": lambda *_: 1 / 0}


def monitored(*names):
    return replace(run_config(), monitors=names)


def test_tensorboard_has_hyperparameters_and_gradient_norms(world, tmp_path):
    train(world, tmp_path, run_config(clip=0.1))
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    (session,) = (
        metadata.plugin_data.content
        for tag, metadata in events.summary_metadata.items()
        if tag == "_hparams_/session_start_info"
    )
    assert b"batch_size" in session and b"zero_stage" in session and b"clip" in session
    norms = [event.value for event in events.Scalars("gradient_norm")]
    assert len(norms) == STEPS and min(norms) > 0.1  # before clipping


def test_mlflow_gets_metrics_and_goes_on_with_the_same_run(world, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(Stopped):
        train(world, tmp_path, monitored("mlflow"), model(), (3,), signal_self(15))
    train(world, tmp_path, monitored("mlflow"))
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'ds_minimodel'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "test" and run.data.params["batch_size"] == "8"
    seen = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "gradient_norm")}
    written = {record["step"]: record["gradient_norm"] for record in read_json_lines(tmp_path / "metrics.jsonl")}
    assert seen == written and len(seen) == STEPS


def test_weights_and_biases_gets_metrics_and_settings(world, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train(world, tmp_path, monitored("wandb"))
    (log,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    end = time.monotonic() + 60  # its service closes the file after the run has ended
    while b"gradient_norm" not in log.read_bytes() and time.monotonic() < end:
        time.sleep(0.1)
    for name in (b"gradient_norm", b"tokens_per_second", b"batch_size"):
        assert name in log.read_bytes()


def test_a_service_that_fails_later_ends_no_training(world, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(monitors.MONITORS, "json", lambda _run: type("Failing", (), FLAWS)())  # a module that is there
    train(world, tmp_path, monitored("json"))
    assert caplog.text.count("engine.monitors: json gets no more: division by zero") == 1
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == STEPS


def test_what_cannot_start_is_refused_before_the_first_step(world, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"engine.monitors: no_such is not installed: pip install"):
        train(world, tmp_path, monitored("no_such"))
    monkeypatch.setitem(monitors.MONITORS, "json", lambda _run: {}["key"])
    with pytest.raises(UserError, match="engine.monitors: json: 'key'; mend this, or leave it out"):
        train(world, tmp_path, monitored("json"))
    assert not (tmp_path / "metrics.jsonl").exists()
