"""study/run.sh: the order of its runs, their settings, what they share, and where it ends.

`ds-minimodel` and `python` are stand-ins that note how they were called and leave the folders of a run, for the runs
of the study take hours.
"""

import os
import re
import shutil
import signal
import subprocess

import pytest

from ds_minimodel.recipe.reading import load_recipe
from tests.docs import ROOT

PROGRAM = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls
[ "$1" != status ] || { echo "9 jobs: ${STATES:-9 complete}; 1 KiB"; exit 0; }
[[ $* =~ workdir=([^ ]+) ]] || exit 0
for part in tokenizer/en tokens pretrain build-mini finetune; do
    folder=${BASH_REMATCH[1]}/$part
    [ -e "$folder" ] || { mkdir -p "$folder" && echo "$*" > "$folder/made-by"; }
done
[[ $* != *"${STOP_AT:-nothing}"* ]] || kill -KILL $PPID
"""
PILOTS = ["pilot", "other", "german", "other-german"]
TUNED = ["find-1e-3x2", "find-3e-4x4", "find-1e-3x4", "tested-3e-4x4"]
RUNS = ["seed-1", "seed-11", "depth-1", "depth-3", "depth-6", "depth-9", "little"]
TRIES = [
    f"try-{name}"
    for name in "batch bias brief finish focus gentle growing lr ofa positions short together wechsel".split()
]
WORKDIRS = [*PILOTS, *TUNED, *RUNS, *TRIES, "chosen", "fast", "fast-deep", "fast-base", "other-seed-1"]


@pytest.fixture
def study(tmp_path):
    """study(part…, STOP_AT=…, STATES=…): run the script in a folder of its own; its process."""
    environment = (ROOT / "scripts/environment.sh").read_text() + "prepare_environment() { :; }\n"
    files = {
        "scripts/environment.sh": environment,
        "bin/ds-minimodel": PROGRAM,
        "bin/python": '#!/usr/bin/env bash\necho "python $*" >> calls\n',
        "study/run.sh": (ROOT / "study/run.sh").read_text(),
        "data/study/text/de.txt": "".join(f"{n}\n{n}\n\n" for n in range(20)),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shutil.copy(tmp_path / "data/study/text/de.txt", tmp_path / "data/study/text/el.txt")

    def run(*parts, **environment):
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        command = ["bash", "study/run.sh", *parts]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True
        )

    run.root = tmp_path
    return run


def calls(study):
    return (study.root / "calls").read_text().splitlines()


def workdirs(study):
    return [re.search("workdir=runs/study/(.*?)( |$)", call)[1] for call in calls(study) if call.startswith("run ")]


def log(study):
    """Lines of the log without their times."""
    return [line[21:] for line in (study.root / "runs/study/log.txt").read_text().splitlines()]


def test_all_parts_in_their_order(study):
    done = study()
    assert done.returncode == 0, done.stderr
    assert calls(study)[0] == "fetch-sample --set study --out data/study"
    assert workdirs(study) == WORKDIRS
    scripts = [call.split()[1:3] for call in calls(study) if call.startswith("python ")]
    assert scripts[:2] == [["study/word_vectors.py", "study/study.yaml"], ["study/tables.py", "runs/study"]]
    assert scripts[2:] == [["study/alignment.py", "study/study.yaml"]] * 7
    parts = ["data", "pilot", "tune", "seeds", "depths", "little", "vectors", "search", "body", "tables"]
    assert log(study)[1:-1] == [f"{part}: {what}" for part in parts for what in ("begun", "done")]
    assert log(study)[-1] == "end, exit code 0"
    assert (study.root / "data/study-tenth/el.txt").read_text() == "0\n0\n\n10\n10\n\n"


def test_the_recipe_takes_the_settings_of_every_run(study, monkeypatch):
    monkeypatch.chdir(ROOT)
    study()
    recipes = {}
    for call in calls(study):
        command, *words = re.split(r" (?=[a-z_.]+=|study/study)", call)
        if command == "run":
            recipe, *overrides = words
            loaded = load_recipe(recipe, overrides)
            recipes[loaded.workdir.rpartition("/")[2]] = loaded
            assert bool(loaded.adapt.word_vectors) == (loaded.adapt.initialisation in ("wechsel", "ofa"))
    assert list(recipes) == WORKDIRS
    assert recipes["fast"].systems == recipes["fast-deep"].systems == ["multijoint"]
    assert recipes["fast-base"].systems == ["bl_base"] and recipes["fast-base"].adapt.initialisation == "ofa"
    assert (recipes["fast"].mini.depth, recipes["fast-deep"].mini.depth) == (1, 9)
    assert recipes["chosen"].adapt == recipes["try-batch"].adapt


@pytest.mark.parametrize("parts", [["pilots"], ["data", "--parts"], [""]])
def test_a_part_that_is_none_is_refused_before_anything_is_written(study, parts):
    done = study(*parts)
    assert done.returncode == 2 and f"error: {parts[-1]} is no part of the study" in done.stderr
    assert not (study.root / "runs").exists() and not (study.root / "calls").exists()


def test_a_killed_start_goes_on(study):
    assert study("seeds", STOP_AT="seed-11").returncode == -signal.SIGKILL
    assert log(study)[-1] == "seeds: begun"
    assert study("seeds").returncode == 0 and log(study)[-1] == "end, exit code 0"


def test_nothing_follows_a_run_that_sigterm_has_stopped(study):
    done = study("pilot", "seeds", STATES="5 complete, 1 unfinished, 3 pending")
    assert done.returncode == 143 and done.stderr == "stopped before all was done; the same command goes on\n"
    assert workdirs(study) == ["pilot"] and log(study)[-1] == "end, exit code 143"
