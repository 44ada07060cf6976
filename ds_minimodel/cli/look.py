"""`ds-minimodel recipes`, `status` and `doctor`: recipes, the states of jobs, and this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from ds_minimodel import __version__
from ds_minimodel.cli.steps import Commands, Options, add_recipe_command, recipe_of
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.common.files import holder
from ds_minimodel.launch.hosts import name_the_cpu
from ds_minimodel.pipeline.layout import CALL, LOCK, RECIPE
from ds_minimodel.report.render import size_of

if TYPE_CHECKING:
    from ds_minimodel.pipeline.status import JobStatus

PACKAGES = (
    "torch",
    "deepspeed",
    "numpy",
    "sentencepiece",
    "safetensors",
    "tensorboard",
    "mpi4py",
    "apex",
    "matplotlib",
    "lxml",
    "zstandard",
    "transformers",
)
LAUNCHERS = ("deepspeed", "torchrun", "mpirun", "pdsh", "ssh")


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    recipes = commands.add_parser(
        "recipes", help="list the recipes that come with the package, or print one"
    )
    recipes.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="the recipe to print; every command takes it by name",
    )
    recipes.set_defaults(run=_recipes)
    status = add_recipe_command(
        commands,
        "status",
        "show which jobs are complete, running, pending or outdated, and why",
        _status,
    )
    status.add_argument(
        "--verify", action="store_true", help="read every byte of complete artifacts"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    doctor = commands.add_parser("doctor", help="show versions, kernels, devices and launchers")
    doctor.set_defaults(run=_doctor)


def _recipes(options: Options) -> None:
    from ds_minimodel.config.reading import package_recipes

    recipes = package_recipes()
    if options.name is None:
        for name, text in recipes.items():
            print(f"{name:<12}{text.partition(chr(10))[0].removeprefix('# ')}")
    elif options.name in recipes:
        print(recipes[options.name], end="")
    else:
        raise UserError(f"{options.name}: no such recipe; there are {', '.join(recipes)}")


def _status(options: Options) -> None:
    # It must come before the import, which brings DeepSpeed.
    name_the_cpu()
    from ds_minimodel.pipeline.status import look

    given = Path(options.recipe)
    options.recipe = _recipe_in(given)
    recipe, _ = recipe_of(options)
    jobs = look(recipe, verify=options.verify)
    if options.json:
        print(json.dumps({"jobs": [asdict(job) for job in jobs]}, indent=1))
    else:
        print("\n".join(_lines(jobs)))
        if (given / CALL).is_file() and any(job.state != "complete" for job in jobs):
            print("the same call of `ds-minimodel extend` resumes")
    damaged = [job for job in jobs if job.state == "damaged"]
    if options.verify and damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise UserError(f"{damaged[0].name} is damaged: {damaged[0].why}{more}")


def _recipe_in(path: Path) -> str:
    """Return `path`, or the recipe of a folder of `extend`.

    Raises:
        UserError: The folder has no recipe yet.
    """
    if (path / RECIPE).is_file():
        return str(path / RECIPE)
    if (path / CALL).is_file():
        who, _ = holder(path / LOCK) or ("", "")
        now = f"{who} reads the text" if who else "the same call resumes"
        raise UserError(f"{path}: extend has no recipe yet, and so no jobs; {now}")
    return str(path)


def _lines(jobs: Sequence[JobStatus]) -> list[str]:
    """Return a line for each job, and one for all."""
    width = max(len(job.name) for job in jobs)
    lines = []
    for job in jobs:
        line = f"{job.name:{width}}  {job.state:10}  {size_of(job.bytes):>8}  "
        lines.append(f"{line}{printable(_details(job))}".rstrip())
    counts = Counter(job.state for job in jobs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return [*lines, f"{len(jobs)} jobs: {states}; {size_of(sum(job.bytes for job in jobs))}"]


def _details(job: JobStatus) -> str:
    """Return how far a job's training is, and why the job is in its state."""
    training = job.training
    parts = []
    if training and job.state != "complete":
        parts.append(f"step {training.step:,} of {training.steps:,}")
        parts.append(f"{training.rate:.3g} steps/s")
        parts.append(f"{tqdm.format_interval(training.seconds_left)} left")
    if job.why:
        parts.append(job.why)
    return ", ".join(parts)


def _doctor(_options: Options) -> None:
    from ds_minimodel.ops.gpu import check_gpus

    print(report())
    check_gpus()


def report() -> str:
    """Return versions, devices, kernels and launchers here, as lines `name: what was found`."""
    import torch

    from ds_minimodel.ops.cpu import has_bf16_products
    from ds_minimodel.ops.loading import OPS, backend
    from ds_minimodel.ops.precision import DTYPES, resolve_precision

    lines = [f"ds_minimodel: {__version__}, Python {platform.python_version()}"]
    lines += [f"{name}: {_version(name)}" for name in PACKAGES]
    bf16 = "native" if has_bf16_products() else "computed in fp32"
    lines.append(
        f"CPU: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, bf16 "
        f"products {bf16}"
    )
    devices = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
    ]
    gpus = [
        f"{gpu.name} (sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB)"
        for gpu in devices
    ]
    lines.append(f"GPUs: {', '.join(gpus) or 'none'}")
    device = "cuda" if devices else "cpu"
    dtype = DTYPES[resolve_precision("auto", torch.device(device))]
    lines += [f"op {name}: {backend(name, device, dtype)}" for name in OPS]
    # Launchers are also searched for beside this python, whose environment may not be activated.
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    for name in LAUNCHERS:
        found = shutil.which(name, path=os.pathsep.join(folders))
        lines.append(f"launcher {name}: {found or 'not found'}")
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
