"""scripts/study.sh: the order of its runs, what they share, what its log says of stops; where quickstart.sh ends.

The scripts and scripts/study_page.py's reading of the log are the real ones. `ds-minimodel` is a stand-in that notes
how it was called and leaves the folders of a run, for the runs of a study take hours.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess

import pytest

from ds_minimodel.recipe.reading import load_recipe

from .docs import ROOT, import_script
from .results.some_runs import some_run

PROGRAM = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls
[ "$1" != status ] || { echo "9 jobs: ${STATES:-9 complete}; 1 KiB"; exit 0; }
[[ $* =~ workdir=([^ ]+) ]] || exit 0
for part in tokenizer/en tokens pretrain build-mini finetune; do
    folder=${BASH_REMATCH[1]}/$part
    [ -e "$folder" ] || { mkdir -p "$folder" && echo "$*" > "$folder/made-by"; }
done
[[ $* != *"${STOP_AT:-nothing}"* ]] || kill -"$STOP_BY" $PPID
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
    """study(part…, STOP_AT=…, STOP_BY=…, STATES=…): run the script in a folder of its own; its process."""
    environment = (ROOT / "scripts/environment.sh").read_text() + "prepare_environment() { :; }\n"
    for name, text in {"scripts/environment.sh": environment, "bin/ds-minimodel": PROGRAM}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    for name in ("study.sh", "quickstart.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "bin/ds-minimodel").chmod(0o755)
    (tmp_path / "bin/python").write_text('#!/usr/bin/env bash\necho "python $*" >> calls\n')
    (tmp_path / "bin/python").chmod(0o755)
    (tmp_path / "data/study/text").mkdir(parents=True)
    for language in ("de", "el"):
        (tmp_path / f"data/study/text/{language}.txt").write_text("".join(f"{n}\n{n}\n\n" for n in range(20)))

    def run(*parts, script="study.sh", **environment):
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        command = ["bash", f"scripts/{script}", *parts]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True
        )

    run.root = tmp_path
    return run


def calls(study):
    return (study.root / "calls").read_text().splitlines()


def workdirs(study, command):
    return [re.search("workdir=runs/study/(.*?)( |$)", call)[1] for call in calls(study) if call.startswith(command)]


def log(study):
    """Lines of the log without their times."""
    return [line[21:] for line in (study.root / "runs/study/log.txt").read_text().splitlines()]


def history(study):
    return import_script("scripts/study_page.py").read_history(study.root / "runs/study/log.txt")


def test_all_parts_in_their_order(study):
    done = study()
    assert done.returncode == 0, done.stderr
    assert calls(study)[0] == "fetch-sample --set study --out data/study"
    assert workdirs(study, "run") == WORKDIRS and sorted(workdirs(study, "report")) == sorted([*WORKDIRS, "seed-1"])
    joint, page = calls(study)[-2:]
    assert re.findall("--with runs/study/(\\S+)", joint) == RUNS[1:]
    assert page == f"python scripts/study_page.py runs/study {' '.join(RUNS)}"
    parts = ["data", "pilot", "tune", "seeds", "depths", "little", "vectors", "search", "body", "page"]
    assert [line for line in log(study) if line.endswith("begun")] == [f"{part}: begun" for part in parts]
    assert re.fullmatch(r"end, exit code 0, CPU time since the start: \d+m[\d.]+s \d+m[\d.]+s", log(study)[-1])
    assert (study.root / "data/study-tenth/el.txt").read_text() == "0\n0\n\n10\n10\n\n"
    assert history(study).stops == [] and list(history(study).cpu) == parts


def test_the_recipe_takes_the_settings_of_every_run_and_its_report_has_the_same(study, monkeypatch):
    monkeypatch.chdir(ROOT)
    study()
    settings = {}
    for call in calls(study):
        command, *words = re.split(r" (?=[a-z_.]+=|recipes/)", call)
        if words and not command.startswith("python") and "--with" not in call:
            settings.setdefault(words[1], {})[command] = words
    for by_command in settings.values():
        assert by_command["run"] == by_command["status"] == by_command["report"]
        recipe, *overrides = by_command["run"]
        adapt = load_recipe(recipe, overrides).adapt
        assert bool(adapt.word_vectors) == (adapt.initialisation in ("wechsel", "ofa"))
    assert len(settings) == len(WORKDIRS)


def test_the_fast_recipe_is_the_study_s_but_for_step_2():
    study, fast = (load_recipe(f"recipes/{name}.yaml").model_dump() for name in ("study", "fast"))
    assert {key for key in study if study[key] != fast[key]} == {"workdir", "systems", "mini", "build_mini", "adapt"}


def test_runs_share_what_is_the_same_in_them(study):
    study()
    made_by = {
        (run, part): re.search(r"study/(\S*)", (study.root / f"runs/study/{run}/{part}/made-by").read_text())[1]
        for run in WORKDIRS
        for part in ("tokenizer/en", "tokens", "pretrain", "build-mini", "finetune")
    }
    assert made_by["seed-1", "pretrain"] == made_by["seed-1", "finetune"] == "pilot"
    assert made_by["seed-11", "tokens"] == "pilot" and made_by["seed-11", "pretrain"] == "seed-11"
    assert made_by["depth-9", "pretrain"] == made_by["depth-9", "finetune"] == "depth-1"
    assert made_by["german", "finetune"] == made_by["find-1e-3x4", "pretrain"] == "pilot"
    assert made_by["other-german", "finetune"] == "other" and made_by["tested-3e-4x4", "finetune"] == "find-3e-4x4"
    assert {made_by[run, "finetune"] for run in (*TRIES, "chosen", "fast", "fast-deep")} == {"depth-1"}
    assert made_by["other-seed-1", "pretrain"] == "other" and made_by["other-seed-1", "build-mini"] == "other-seed-1"
    assert made_by["little", "tokens"] == "little" and made_by["little", "build-mini"] == "seed-1"


@pytest.mark.parametrize("parts", [["pilots"], ["data", "--parts"], [""]])
def test_a_part_that_is_none_is_refused_before_anything_is_written(study, parts):
    done = study(*parts)
    assert done.returncode == 2 and f"error: {parts[-1]} is no part of the study" in done.stderr
    assert not (study.root / "runs").exists() and not (study.root / "calls").exists()


def test_a_killed_start_is_named_by_the_next_one_which_goes_on(study):
    assert study("seeds", STOP_AT="seed-11", STOP_BY="KILL").returncode == -signal.SIGKILL
    assert log(study)[-1] == "seeds: begun"
    assert study("seeds", "depths").returncode == 0
    lines = log(study)
    assert lines[2].startswith("interrupted: killed, or the machine stopped; the newest file was of 20")
    assert lines[3].startswith("start: seeds depths, commit ")
    (stop,) = history(study).stops
    assert stop.how == "killed, or the machine stopped" and re.match(r"20\d\d-\d\d-\d\d \d\d:", stop.time)
    assert stop.went_on >= stop.time and history(study).unknown == {"seeds": 1}


def test_a_signal_ends_a_start_with_a_line(study):
    assert study("seeds", STOP_AT="seed-11", STOP_BY="TERM").returncode == 130
    assert study("seeds").returncode == 0
    assert not any("interrupted" in line for line in log(study))
    assert [stop.how for stop in history(study).stops] == ["stopped by a signal"]


STOPPED = ["5 complete, 1 unfinished, 3 pending", "8 complete, 1 pending"]


@pytest.mark.parametrize("states", STOPPED)
def test_nothing_follows_a_run_that_sigterm_has_stopped(study, states):
    """Such a run ends with 0: docs/checkpoints.md."""
    done = study("pilot", "seeds", STATES=states)
    assert done.returncode == 143 and done.stderr == "stopped before all was done; the same command goes on\n"
    assert workdirs(study, "run") == ["pilot"] and log(study)[-1].startswith("end, exit code 143")
    assert study("pilot", "seeds").returncode == 0
    assert [stop.how for stop in history(study).stops] == ["stopped by a signal"]


def test_nothing_follows_a_quickstart_that_sigterm_has_stopped(study):
    done = study("--ranks", "2", "seed=2", script="quickstart.sh", STATES=STOPPED[0])
    assert done.returncode == 143 and done.stderr.endswith("\nstopped before all was done; the same command goes on\n")
    assert calls(study)[1:] == ["run recipes/quickstart.yaml --ranks 2 seed=2", "status recipes/quickstart.yaml seed=2"]


def test_two_at_a_time_are_refused(study):
    (study.root / "runs/study").mkdir(parents=True)
    with open(study.root / "runs/study/study.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = study("data")
    assert done.returncode == 2 and "the study is running already" in done.stderr
    assert not (study.root / "runs/study/log.txt").exists()


@pytest.mark.parametrize(
    "bound, verdicts",
    [
        ("at_least", ["refuted", "open", "confirmed", "confirmed"]),
        ("above", ["refuted", "open", "open", "confirmed"]),
        ("at_most", ["confirmed", "open", "open", "refuted"]),
    ],
)
def test_a_verdict_is_one_of_the_whole_interval(bound, verdicts):
    """Of intervals below 2, around it, from it on, and above it."""
    page = import_script("scripts/study_page.py")
    intervals = [(1.0, 1.9), (1.5, 2.5), (2.0, 2.5), (2.1, 3.0)]
    numbers = [page.Number((low + high) / 2, low, high, 4, 24) for low, high in intervals]
    assert [page.verdict(number, bound, 2) for number in numbers] == verdicts


def test_a_training_that_ends_above_its_500th_step_has_diverged():
    run = some_run(adapt={"steps": 1000})
    assert {row["language"] for row in run.losses} == {"de", "tr"}
    for row in run.losses:
        row |= {
            "curve": [[0.1, 9.0], [0.5, 5.0], [0.6, 4.0], [1.0, 4.5]],
            "final": 5.5 if row["language"] == "de" else 4.5,
        }
    page = import_script("scripts/study_page.py")
    assert page.divergences([run]) == ["first: adapt of BL_BASE in de", "first: adapt of MiniJoint in de"]
    assert page.divergences([some_run()]) == [], "trainings of less than 500 steps have none"
