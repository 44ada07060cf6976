"""Steps and commands that may write no file as large as one that they write: each such limit ends in one line, what is
complete stays as it is, and the same command without it ends with the bits of an undisturbed one."""

import contextlib
import os
import resource
import shutil
import subprocess

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.common.files import sha256_of_file

from ..forks import Fork, run
from ..hf.test_decoders import save_llama
from ..pipeline.conftest import make_world

pytestmark = pytest.mark.timeout(1200)
STEPS = "corpus", "tokenizer", "prepare", "pretrain", "build-mini", "adapt", "finetune", "evaluate", "report"
MOST = 8  # limits that are tried of a command
OVERRIDES = ["systems=[bl_base, minipost]", "finetune.seeds=1"]
# What says how long something took, and records of when files were written.
DIFFERS = (
    *("metrics.jsonl", "tfevents", "report/", "evaluate/", "samples.md", "README.md", ".lock", ".job.json"),
    "call.json",
)


def limited(arguments, limit):
    """The command line with no file above `limit` bytes but its standard error, which goes through a pipe."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=2) as cat:
        os.dup2(cat.stdin.fileno(), 2)
        cat.stdin.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        os.close(2)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a duplicate of it may be open
            cat.wait(1)
        cat.kill()
    raise SystemExit(code)


def contents(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_size, sha256_of_file(path)) for path in files}


def lasting(files):
    return {name: facts for name, facts in files.items() if not any(part in name for part in DIFFERS)}


def attack(arguments, place, before):
    """Do a command undisturbed in `place`, a copy of `before` where there is one, and then with every limit; the number
    of these."""

    def restart():
        shutil.rmtree(place, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, place)

    arguments = [str(argument) for argument in arguments]
    restart()
    code, _, err = run(*arguments)
    assert code == 0, err
    there, made = contents(before), contents(place)
    sizes = {size for name, (size, _) in made.items() if there.get(name) != made[name] and size}
    limits = sorted({0, *(size - 1 for size in sizes)})
    limits = limits[:: -(-len(limits) // MOST)]
    for limit in limits:
        restart()
        process = Fork("tests.torture.test_limits:limited", arguments, limit)
        _, err = process.communicate()
        lines = [line for line in err.splitlines() if line.startswith("ds-minimodel: ")]
        assert process.returncode == 2 and len(lines) == 1 and "Traceback" not in err, f"{limit}: {err}"
        assert "File too large" in lines[0], lines
        left = contents(place)
        assert lasting(there).items() <= left.items() and not any(".tmp" in name for name in left), limit
        code, _, err = run(*arguments)
        assert code == 0 and lasting(contents(place)) == lasting(made), f"{limit}: {err}"
    return len(limits)


def test_steps(tmp_path):
    recipe, workdir = make_world(tmp_path), tmp_path / "run"
    for number, step in enumerate(STEPS):
        before = tmp_path / f"before-{number}"
        if workdir.exists():
            shutil.copytree(workdir, before)
        print(step, attack([step, recipe, *OVERRIDES], workdir, before))


def test_commands(tmp_path):
    make_world(tmp_path)
    for language in ("en", "xx"):
        path = tmp_path / f"{language}.txt"
        path.write_text(path.read_text() * 4)
    save_llama(tmp_path / "en.txt", tmp_path / "llama", "$A")
    run_of = tmp_path / "extend/out/run"
    exporting = ["export-hf", run_of / "pretrain/bl_base/model", "--pack", run_of / "adapt/lora/xx/pack"]
    extending = [tmp_path / "llama", tmp_path / "xx.txt", "--language", "xx", "--tokens", "10k", "--out"]
    for *command, out in (["extend", *extending, "out"], [*exporting, "out"], [*exporting, "--adapter", "out"]):
        place = tmp_path / command[0]
        print(command[0], attack([*command, place / out], place, tmp_path / "none"))
