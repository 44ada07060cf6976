"""scripts/environment.sh chooses torch and installs; scripts/docker names what is."""

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCKERFILES = sorted((ROOT / "scripts/docker").iterdir())


def torch_wheel(folder, version):
    """A package of torch's name and version, and nothing else."""
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        info = f"torch-{version}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    return folder


def tool(folder, name, script):
    """The folder, with an executable of that name in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


def gpus(folder, *capabilities):
    """A PATH with a made-up nvidia-smi for GPUs of these compute capabilities."""
    asked = '[ "$*" = "--query-gpu=compute_cap --format=csv,noheader" ]'
    tools = tool(folder, "nvidia-smi", f"{asked} && printf '%s\\n' {' '.join(capabilities)}")
    return f"{tools}:{os.environ['PATH']}"


def without_settings():
    """The environment, less what is set for pip and for scripts/environment.sh."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "DSMM_"))
    }


def install_torch(environment, offered, **variables):
    """(version of the torch that comes or None, what is said) where a folder offers torch of some
    versions.
    """
    offer = environment / "-".join(offered)
    offer.mkdir(exist_ok=True)
    for version in offered:
        torch_wheel(offer, version)
    installed = "lib/*/site-packages/torch-*.dist-info"
    for former in environment.glob(installed):
        shutil.rmtree(former)
    variables = (
        dict(PIP_CONFIG_FILE=os.devnull, VIRTUAL_ENV=str(environment), PATH=os.environ["PATH"])
        | variables
    )
    variables = {
        **without_settings(),
        "DSMM_PIP_ARGS": f"--no-index --find-links {offer}",
        **variables,
    }
    variables["PATH"] = f"{environment}/bin:{variables['PATH']}"
    command = ["bash", "-c", "source scripts/environment.sh; install_torch"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    version = next(
        (path.name[len("torch-") : -len(".dist-info")] for path in environment.glob(installed)),
        None,
    )
    assert done.returncode == (0 if version else 2), done.stderr
    return version, done.stderr


BUILDS = ["2.13.0", "2.13.0+cpu", "2.13.0+cu126"]
OLD_GPU = "torch==2.13.0+cu126, because of the GPU's compute capability 7.0"
NO_NVCC = (
    f"{OLD_GPU}; its kernels need an nvcc of CUDA 12, which is not here (CUDA_HOME names its "
    "folder)"
)
V100 = {"gpus": ["7.0"], "CUDA_HOME": "/nowhere"}


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="an NVIDIA driver is here")
@pytest.mark.parametrize(
    "given, offered, version, words",
    [
        ({}, BUILDS[:2], "2.13.0+cpu", "torch==2.13.0+cpu, because no NVIDIA driver was found"),
        (
            {},
            ["2.13.0", "2.14.0+cpu"],
            "2.13.0",
            "as pip finds it, 5 GB with CUDA: no NVIDIA driver was found, but no",
        ),
        ({"gpus": ["9.0", "7.0", "9.0"]}, BUILDS, "2.13.0+cu126", OLD_GPU),
        (
            {"gpus": ["10.0", "9.0"]},
            BUILDS[:1],
            "2.13.0",
            "as pip finds it, for compute capability 9.0",
        ),  # B200, H100
        ({"DSMM_GPU": "7.0", "CUDA_HOME": "/nowhere"}, BUILDS, "2.13.0+cu126", NO_NVCC),
        (
            {"DSMM_GPU": "V100"},
            BUILDS,
            None,
            "DSMM_GPU=V100: it is a compute capability, such as 7.0",
        ),
        (
            V100,
            BUILDS[:2],
            None,
            "compute capability 7.0 needs torch==2.13.0+cu126, which no index here has;",
        ),
        ({**V100, "DSMM_BUILD_OPS": "1"}, BUILDS, None, NO_NVCC),
    ],
)
def test_torch_is_of_a_build_for_the_oldest_gpu(
    environment, tmp_path, given, offered, version, words
):
    """At hand or named; what cannot be had is said before anything is installed."""
    nvcc = tool(
        tmp_path / "cuda/bin", "nvcc", "echo 'Cuda compilation tools, release 12.6, V12.6.85'"
    ).parent
    variables = {"CUDA_HOME": str(nvcc), **given}
    if "gpus" in variables:
        variables["PATH"] = gpus(tmp_path / "tools", *variables.pop("gpus"))
    found, said = install_torch(environment, offered, **variables)
    assert found == version
    assert words in said
    assert said.count("\n") == 1
    assert said.startswith("torch: " if version else "error: ")
    assert said.endswith("; DSMM_TORCH_SPEC chooses another\n") or not version


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_a_dockerfile_names_what_is_there(file):
    text = file.read_text()
    copied = [
        source for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for source in line.split()
    ]
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {
        "setup.py",
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
    }
    assert needed <= set(copied)
    (extras,) = re.findall(r"prepare_environment (\S+)$", text, re.M)
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()
    (mode,) = re.findall(r"DSMM_BUILD_OPS=(\S+)", text)
    assert f'"{mode}"' in re.search(r"MODE not in \((.*)\)", (ROOT / "setup.py").read_text())[1]
    tried = re.search(r"torch=(torch==\S+)", (ROOT / "scripts/environment.sh").read_text())[1]
    assert set(re.findall(r"torch==[\d.]+", text)) <= {tried}


def test_a_clone_is_found_from_the_folder_above_it(environment, tmp_path):
    """Where its own folder, which has the package's name, would be taken for it."""
    clone = tmp_path / "ds_minimodel"
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "ds_minimodel", "examples"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, clone.mkdir(exist_ok=True) or clone / name)
    python = environment / "bin/python"
    variables = without_settings() | {"DSMM_BUILD_OPS": "0"}
    # PYTHONPATH has setuptools and torch.
    variables |= {
        "VIRTUAL_ENV": str(environment),
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    options = "-m pip install --no-index --no-deps --no-build-isolation -e".split()
    done = subprocess.run([python, *options, clone], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for folder in (clone, tmp_path, environment):
        asked = "from importlib.util import find_spec as find\n"
        asked += (
            "print(*(find(name).origin for name in ('ds_minimodel.api', 'ds_minimodel_examples')))"
        )
        found = subprocess.check_output([python, "-c", asked], cwd=folder, env=variables, text=True)
        assert found.split() == [
            f"{clone}/ds_minimodel/api.py",
            f"{clone}/examples/ds_minimodel_examples/__init__.py",
        ]
