"""Weights & Biases and MLflow, which metrics go to beside TensorBoard where `engine.monitors` of a recipe names them.

Where they send what, and as whom, they find in their own variables (WANDB_PROJECT, MLFLOW_TRACKING_URI, …).
"""

import importlib.util
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ds_minimodel.common.errors import UserError

log = logging.getLogger(__name__)

_PROJECT = "ds_minimodel"  # where their variables name none
Settings = Mapping[str, bool | int | float | str]


class MonitoredRun(NamedTuple):
    """A training run as a service knows it. id: the same when the run goes on after an interruption."""

    id: str
    name: str
    settings: Settings


class Monitor(Protocol):
    """One run at a service."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def end(self, failed: bool) -> None: ...


class WeightsAndBiases:
    """A Monitor; steps that it has already, of before an interruption, it leaves as they are."""

    def __init__(self, run: MonitoredRun) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=run.id,
            name=run.name,
            resume="allow",
            config=dict(run.settings),
            settings=wandb.Settings(console="off"),  # it would take over standard output
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def end(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow:
    """A Monitor. The run is found again by a tag."""

    def __init__(self, run: MonitoredRun) -> None:
        import mlflow

        self.client = client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        found = client.search_runs([experiment], f"tags.{_PROJECT} = '{run.id}'", max_results=1)
        if found:
            self.run_id = found[0].info.run_id
            client.update_run(self.run_id, status="RUNNING")
            return
        self.run_id = client.create_run(experiment, tags={_PROJECT: run.id}, run_name=run.name).info.run_id
        for key, value in run.settings.items():
            client.log_param(self.run_id, key, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = ((name.replace("/", "."), value) for name, value in values.items())  # folders cannot lie in files
        self.client.log_batch(self.run_id, [Metric(name, value, now, step) for name, value in named])

    def end(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


MONITORS: dict[str, Callable[[MonitoredRun], Monitor]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def check_monitors(names: Collection[str]) -> None:
    """UserError for a monitor that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"engine.monitors: {name} is not installed: pip install 'ds_minimodel[{name}]'")


class Monitors:
    """The monitors of a run. UserError for one that cannot be started; one that fails later is left with a warning."""

    def __init__(self, names: Collection[str], run: MonitoredRun) -> None:
        check_monitors(names)
        self.started: dict[str, Monitor] = {}
        for name in names:
            try:
                self.started[name] = MONITORS[name](run)
            except Exception as error:  # of any library's own kind
                raise UserError(
                    f"engine.monitors: {name}: {str(error).partition(chr(10))[0]}; mend this, or leave it out"
                ) from error

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._each(lambda monitor: monitor.log(values, step))

    def end(self, failed: bool) -> None:
        self._each(lambda monitor: monitor.end(failed))

    def _each(self, act: Callable[[Monitor], None]) -> None:
        for name, monitor in list(self.started.items()):
            try:
                act(monitor)
            except Exception as error:  # no service ends a training run
                log.warning(f"engine.monitors: {name} gets no more: {str(error).partition(chr(10))[0]}")
                del self.started[name]
