"""Torture: inputs, damages and swaps at random for some minutes; each must give right results or one line of refusal.

    python -m tests.torture.run MINUTES [--seed N] [--out FILE]

Inputs are those of `generators`. A damage changes a file of a finished workdir, a swap puts there what another job or
another workdir made, a link leads out of it; then one evaluation is undone and `run` called. Held is exit code 0 with
scores and report of before, or exit code 2 with one line and nothing changed on disk. A folder from strangers is
damaged and imported, or opened by `predict`: refused, or used as what it is. Compressed text is read as its tool reads
it, or refused. Finetuning seeds grow and shrink, and some are lost: each run has the scores of all that it names. A
fault is printed with what repeats it.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from ds_minimodel.cli.main import main as command
from ds_minimodel.engine import loop  # noqa: F401  (what a command would import, before the processes part)
from ds_minimodel.engine.ranks.launch import CPU
from ds_minimodel.interop.hugging_face import import_hf
from ds_minimodel.results import page  # noqa: F401

from ..forks import run
from ..interop.conftest import make_roberta, make_roberta_json, make_unigram, make_xlm_r, make_xlm_r_json, write_text
from ..pipeline.conftest import make_world
from ..serve.conftest import make_family
from .foreign import LINES, artifact_outcome, copy, damage_artifact, damage_import, import_outcome
from .generators import CASES, describe, outcome
from .streams import make_file, stream_outcome

ROOT = Path(__file__).parents[2]
SCORED = [
    f"evaluate/{system}/xx/{task}/seed-3" for system in ("bl_base", "minijoint", "minipost") for task in ("topic", "qa")
]
OUTSIDE = "outside"  # what links lead to
PATIENCE = 120  # seconds for one command
CHECKPOINTS = ("xlm-r", "xlm-r-json", "roberta", "roberta-json")
MOST_SEEDS = 4
ROUND = [*["input"] * 8, "damage", "import", "artifact", "stream"]  # what a worker tries, over and over
ROUND = [*ROUND * 7, *ROUND[:-1], "seeds"]  # that takes seconds


def copy_of(recipe: Path, folder: Path, seed: int | None = None, seeds: int = 2) -> Path:
    """A finished copy of the finished run of `recipe`, of another seed where one is given. seeds: of its finetuning."""
    shutil.copytree(recipe.parent, folder)
    text = recipe.read_text().replace(str(recipe.parent), str(folder))
    if seed is not None:
        shutil.rmtree(folder / "run")
        text = text.replace("seed: 3\n", f"seed: {seed}\n", 1)
    (folder / "recipe.yaml").write_text(with_seeds(text, seeds))
    done = subprocess.run(
        [sys.executable, "-m", "ds_minimodel", "run", folder / "recipe.yaml"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return folder / "recipe.yaml"


# --- Damages and swaps: what each does to a file, and its name ---


def _bytes(content: bytes, rng: random.Random) -> bytes:
    how = rng.choice(("cut", "bit", "noise", "zeros", "longer", "empty", "other"))
    at = rng.randrange(len(content) or 1)
    match how:
        case "cut":
            return content[:at]
        case "bit":
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :] if content else b"x"
        case "noise":
            return content[:at] + rng.randbytes(rng.randint(1, 64)) + content[at + 64 :]
        case "zeros":
            return content[:at] + bytes(len(content) - at)
        case "longer":
            return content + content[at:]
        case "empty":
            return b""
    return rng.choice((b"null", b"[]", b"{}", b"7", b'{"files": {}}', b"[" * 50_000, b"\xff\xfe", b"9" * 5000))


def _json(content: bytes, rng: random.Random) -> bytes:
    """A value of a JSON file changed, or a key taken away; bytes for another file."""
    try:
        value = json.loads(content)
    except ValueError:
        return _bytes(content, rng)
    places = list(_places(value))
    if not places:
        return _bytes(content, rng)
    holder, key = rng.choice(places)
    if isinstance(holder, dict) and rng.random() < 0.2:
        del holder[key]
    else:
        old = holder[key]
        holder[key] = rng.choice(
            (None, True, -1, 0, 10**30, 0.5, float("nan"), "", "x\n", [], {}, [old], "../x", 1e308)
        )
        if isinstance(old, (int, float)) and rng.random() < 0.5:
            holder[key] = old + 1
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _places(value: object) -> Iterator[tuple]:
    if isinstance(value, (dict, list)):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(inner)


def damage(workdir: Path, _other: Path, rng: random.Random) -> tuple[str, Path, Path | bytes | None]:
    """(class, path, what is put there): bytes, a file or folder to copy, or None for an empty folder."""
    path = rng.choice(_files(workdir))
    how = rng.random()
    if how < 0.05:
        return "a folder in the place of a file", path, None
    if how < 0.1:
        return "a file in the place of a folder", path.parent, b"a file"
    content = path.read_bytes()
    if how < 0.55:
        return f"bytes of a {_noun(path)}", path, _bytes(content, rng)
    return f"values of a {_noun(path)}", path, _json(content, rng)


def swap(workdir: Path, other: Path, rng: random.Random) -> tuple[str, Path, Path | bytes | None]:
    """As `damage`: a file or folder of the same name from another job, or of the same place in another workdir."""
    path = rng.choice(_files(workdir))
    if rng.random() < 0.5 and path.parent != workdir:
        path = path.parent
    if rng.random() < 0.3:
        return "the same of another workdir", path, other / path.relative_to(workdir)
    alike = [one for one in workdir.rglob(path.name if path.is_dir() else f"*{path.suffix}") if one != path]
    alike = [one for one in alike if one.is_dir() == path.is_dir() and ".lock" not in one.name]
    if not alike:
        return "the same of another workdir", path, other / path.relative_to(workdir)
    return f"a {'folder' if path.is_dir() else _noun(path)} of another job", path, rng.choice(alike)


def link(workdir: Path, _other: Path, rng: random.Random) -> tuple[str, Path, Path | bytes | None]:
    """As `damage`: a link to a copy, OUTSIDE the workdir, of what is there, or to somebody's files where nothing is."""
    outside = workdir.parent / OUTSIDE
    _remove(outside)
    path = rng.choice(_files(workdir))
    if rng.random() < 0.5:
        path = rng.choice([path, *(parent for parent in path.parents if workdir in parent.parents)])
        shutil.copytree(path, outside) if path.is_dir() else shutil.copyfile(path, outside)
        return f"a {'folder' if path.is_dir() else _noun(path)}", path, outside
    for name in ("step-00000001.partial/state", "00000.bin", "latest", "a.tmp99999999"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("precious")
    jobs = sorted(record.with_name(record.name.removesuffix(".job.json")) for record in workdir.rglob("*.job.json"))
    job = rng.choice([job for job in jobs if (job / "run").is_dir()])
    end = rng.choice((".lock", ".partial", ".progress.json", ".former", ".tmp", ".x.tmp99999999"))
    inside = rng.choice(("run/checkpoints", "run/x.tmp99999999", "body.tmp", "pack.former", "model.tmp"))
    return ("nothing", job / inside, outside) if rng.random() < 0.5 else ("nothing", Path(f"{job}{end}"), outside)


def _files(workdir: Path) -> list[Path]:
    parts = [path for path in workdir.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return sorted(path for path in parts if "report" not in path.parts and "events" not in path.parts)


def _noun(path: Path) -> str:
    return path.name.partition(".")[2] if path.name.endswith(".job.json") else path.name if path.suffix else "file"


# --- One worker ---


Results = dict[str, bytes]


def results_of(recipe: Path) -> Results:
    """{name: content} of what a run is for."""
    return {name: (recipe.parent / "run/report" / name).read_bytes() for name in ("scores.json", "report.md")}


def _held(recipe: Path, right: Results, path: Path, put: Path | bytes | None, undone: str) -> tuple[str, str]:
    """("refused", "answered" or "fault", what was said) of `run` with `put` in the place of `path`."""
    workdir, aside = recipe.parent / "run", recipe.parent / "aside"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    kept = {path: aside / "damaged"}
    if not path.is_relative_to(workdir / undone):  # what is undone would not be read
        kept[workdir / undone] = aside / "undone"
    record = workdir / f"{undone}.job.json"
    if path != record and not (workdir / undone).is_relative_to(path):
        kept[record] = aside / "record"
    copy = aside / "put"
    outside = {}
    if isinstance(put, Path) and put.name == OUTSIDE:
        copy.symlink_to(put)
        outside = _state(put, "")
    elif isinstance(put, Path):
        shutil.copytree(put, copy) if put.is_dir() else shutil.copyfile(put, copy)
    elif put is not None:
        copy.write_bytes(put)
    else:
        copy.mkdir()
    for one, place in sorted(kept.items(), key=lambda pair: -len(pair[0].parts)):
        if os.path.lexists(one):
            one.rename(place)
    copy.rename(path)
    before = _state(workdir, undone)
    code, said = _run(recipe)
    lines = [line for line in said.splitlines() if line.startswith("ds-minimodel: ")]
    fault, result = "", "refused"
    if code == 2:
        if len(lines) != 1 or "Traceback" in said or not lines[0].isprintable():
            fault = f"{len(lines)} lines"
        elif _state(workdir, undone) != before:
            fault = "changed the disk"
    elif code == 0:
        result = "answered"
        if results_of(recipe) != right:
            fault = "other results"
    else:
        fault = f"exit code {code}"
    if isinstance(put, Path) and outside and _state(put, "") != outside:
        fault = "changed what a link leads to"
    for one in sorted(kept, key=lambda one: len(one.parts)):
        _remove(one)
        if one.parent.exists() and os.path.lexists(kept[one]):
            kept[one].rename(one)
    return ("fault", f"{fault}: {said[-1500:]}") if fault else (result, "")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _state(workdir: Path, undone: str) -> dict[str, tuple[int, int, int]]:
    """All files but locks and those of the evaluation that may have begun, if one is `undone`."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns, path.lstat().st_ino)
        for path in (workdir, *workdir.rglob("*"))
        if not path.is_dir()
        and (not undone or (path.suffix != ".lock" and not str(path).startswith(str(workdir / undone))))
    }


def _run(recipe: Path) -> tuple[int | None, str]:
    """(exit code, standard error) of `ds-minimodel run` in a process parted from this one, which has all imported."""
    with tempfile.TemporaryFile("w+b") as err:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(err.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 99
            try:
                command(["run", str(recipe)])
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 98
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        deadline, status = time.monotonic() + PATIENCE, 0
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, 9)
                os.waitpid(child, 0)
                return None, f"no end after {PATIENCE} s"
            time.sleep(0.02)
        status = ended[1]
        err.seek(0)
        return os.waitstatus_to_exitcode(status), err.read().decode(errors="replace")


# --- Seeds that come and go ---


def with_seeds(text: str, count: int) -> str:
    """A recipe's text with another number of finetuning seeds."""
    return re.sub(r"seeds: \d+", f"seeds: {count}", text)


def seeds_outcome(recipe: Path, rows: list[dict], rng: random.Random) -> tuple[str, str]:
    """As of `_held`: another number of seeds is asked for, and of some jobs the folder and record are gone.

    rows: of scores.json with MOST_SEEDS, of which those of the first seeds are due; what is there is not made again.
    """
    workdir, count = recipe.parent / "run", rng.randint(1, MOST_SEEDS)
    for folder in rng.sample(sorted(workdir.glob("*/**/seed-*[0-9]")), rng.choice((0, 0, 1, 2))):
        shutil.rmtree(folder)
        folder.with_name(f"{folder.name}.job.json").unlink()
    kept = {str(path): path.stat().st_mtime_ns for path in workdir.glob("finetune/**/model.safetensors")}
    recipe.write_text(with_seeds(recipe.read_text(), count))
    code, said = _run(recipe)
    if code:
        return "fault", f"{count} seeds: exit code {code}: {said[-1500:]}"
    names = [f"seed-{3 + number}" for number in range(count)]
    expected = [row for row in rows if f"seed-{row['seed']}" in names]
    if json.loads((workdir / "report/scores.json").read_text()) != expected:
        return "fault", f"{count} seeds: other scores"
    made = {str(path): path.stat().st_mtime_ns for path in workdir.glob("finetune/**/model.safetensors")}
    if not kept.items() <= made.items() or any(not list(workdir.glob(f"finetune/*/*/{name}")) for name in names):
        return "fault", f"{count} seeds: what was there was made again, or something is missing"
    return "answered", ""


Found = tuple[str, str, str]  # class, ("refused", "answered" or "fault"), what repeats it


def work(
    recipe: Path, other: Path, many: Path, strangers: Path, seed: int, until: float, record: Callable[..., None]
) -> None:
    """Tries as of ROUND until a time of time.monotonic: `recipe` is finished, and nobody else's meanwhile.

    other: finished with another seed. many: finished with MOST_SEEDS seeds of finetuning.
    """
    rng, scratch, right = random.Random(seed), recipe.parent / "scratch", results_of(recipe)
    many = copy_of(many, recipe.parent / "seeds", seeds=MOST_SEEDS)
    rows = json.loads(results_of(many)["scores.json"])
    for number in itertools.count():
        if time.monotonic() > until:
            return
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        match ROUND[number % len(ROUND)]:
            case "input":
                found = outcome(rng.choice(CASES)(rng), scratch)
                result = "refused" if found.code == 2 else "answered"
                record(f"input: {found.case.kind}", "fault" if found.fault else result, describe(found))
            case "damage":
                record(*_damaged(recipe, right, other, rng))
            case "import":
                record(*_imported(strangers, scratch, rng))
            case "artifact":
                record(*_opened(strangers, scratch, rng))
            case "stream":
                record(*_read(scratch, rng))
            case "seeds":
                record("seeds", *seeds_outcome(many, rows, rng))


def _damaged(recipe: Path, right: Results, other: Path, rng: random.Random) -> Found:
    kind = rng.choice((damage, swap, link))
    name, path, put = kind(recipe.parent / "run", other.parent / "run", rng)
    while isinstance(put, Path) and not put.exists():
        name, path, put = kind(recipe.parent / "run", other.parent / "run", rng)
    undone = rng.choice(SCORED)
    result, said = _held(recipe, right, path, put, undone)
    place = path.relative_to(recipe.parent)
    return f"{kind.__name__}: {name}", result, f"{place} <- {put!r:.80}; {undone} undone: {said}"


def _imported(strangers: Path, scratch: Path, rng: random.Random) -> Found:
    name, seed = rng.choice(CHECKPOINTS), rng.getrandbits(32)
    folder = copy(strangers / name, scratch / "hf")
    what = damage_import(folder, random.Random(seed))
    good = strangers / f"{name}-imported"
    return _judged(f"import: {name}", what, lambda: import_outcome(folder, scratch / "out", good, LINES))


def _opened(strangers: Path, scratch: Path, rng: random.Random) -> Found:
    name = rng.choice(("body", "classification", "qa", "de", "zh"))
    model, pack = (name, "de") if name not in ("de", "zh") else ("classification", name)
    parts = {part: copy(strangers / part, scratch / part) for part in (model, pack)}
    what = damage_artifact(parts[name], random.Random(rng.getrandbits(32)))
    kind = "pack" if name == pack else "body" if name == "body" else "task model"
    return _judged(f"artifact: {kind}", what, lambda: artifact_outcome(parts[model], parts[pack]))


def _read(scratch: Path, rng: random.Random) -> Found:
    seed = rng.getrandbits(32)
    path = make_file(random.Random(seed), scratch)
    return _judged(f"streams: {path.suffix}", f"make_file of {seed}", lambda: stream_outcome(path))


def _judged(name: str, what: str, outcome_of: Callable[[], str]) -> Found:
    try:
        found = outcome_of()
        return name, {"right": "answered", "refused": "refused"}.get(found, "fault"), f"{what}: {found}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of Rust's is no Exception
        return name, "fault", f"{what}: {traceback.format_exc()}"


def make_strangers(folder: Path) -> Path:
    """Checkpoints of Hugging Face's, the imports of them, and bodies, task models and packs of ours."""
    make_family(folder, "0123456789abcdef")
    text = write_text(folder / "text.txt")
    make_xlm_r(make_unigram(text, folder / "unigram"), folder / "xlm-r")
    make_xlm_r_json(folder / "xlm-r", folder / "xlm-r-json")
    make_roberta(text, folder / "roberta")
    make_roberta_json(text, folder / "roberta-json")
    for name in CHECKPOINTS:
        import_hf(folder / name, folder / f"{name}-imported")
    return folder


def _record(file: TextIO, name: str, result: str, said: str) -> None:
    if result == "fault":
        print(name, said, file=sys.__stderr__, flush=True)
    file.write(json.dumps([name, result]) + "\n")
    file.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="Markdown file for the counts")
    options = parser.parse_args()
    os.environ.update(CPU)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "first").mkdir()
        one = make_world(Path(folder) / "first")
        code, _, errors = run("run", one)
        assert code == 0, errors
        other = copy_of(one, Path(folder) / "other", seed=4)
        many = copy_of(one, Path(folder) / "many", seeds=MOST_SEEDS)
        strangers = make_strangers(Path(folder) / "strangers")
        recipes = [copy_of(one, Path(folder) / f"worker-{index}") for index in range(os.cpu_count() or 1)]
        until, workers = time.monotonic() + 60 * options.minutes, []
        for index, recipe in enumerate(recipes):
            pid = os.fork()
            if not pid:
                with contextlib.suppress(KeyboardInterrupt), open(Path(folder) / f"{index}.jsonl", "w") as file:
                    work(recipe, other, many, strangers, options.seed * 1000 + index, until, partial(_record, file))
                os._exit(0)
            workers.append(pid)
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for pid in workers:
            if os.waitpid(pid, 0)[1]:
                counts["an input that ended the process"]["fault"] += 1
        for path in sorted(Path(folder).glob("*.jsonl")):
            for line in path.read_text().splitlines():
                name, result = json.loads(line)
                counts[name][result] += 1
    table = _table(counts)
    print(table)
    if options.out:
        where = f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {date.today()}"
        head = f"# Torture\n`bash scripts/torture.sh {options.minutes:g} --seed {options.seed}` on {where}.\n\n"
        options.out.write_text(head + table + "\n", encoding="utf-8")
    return 1 if any(count["fault"] for count in counts.values()) else 0


def _table(counts: dict[str, collections.Counter[str]]) -> str:
    rows = ["| class | tried | refused by one line | right results | faults |", "| --- | ---: | ---: | ---: | ---: |"]
    total: collections.Counter[str] = collections.Counter()
    for name, count in sorted(counts.items()):
        total += count
        rows.append(f"| {name} | {count.total()} | {count['refused']} | {count['answered']} | {count['fault']} |")
    rows.append(f"| all | {total.total()} | {total['refused']} | {total['answered']} | {total['fault']} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
