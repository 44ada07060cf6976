"""Bad recipes, overrides, command lines and task files, drawn at random at fixed seeds and given to
the command line.

A case is some files and a command line; `outcome` runs it and says whether it was held: answered,
or refused by exit code 2 with one line on standard error and nothing written. Each is a function of
the random.Random given, so that a fault is found again by its seed. A further kind of case is a
function of (rng, folder) in CASES.
"""

import contextlib
import io
import os
import random
from pathlib import Path

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.config.schema import PaperRecipe
from ds_minimodel.launch.hosts import CPU

pytestmark = pytest.mark.long

RECIPE = """\
workdir: run
systems: [bl_base, minijoint]
languages: {source: en, targets: [de]}
data: {text: {en: en.txt, de: [de.txt]}, min_words: {de: 3}, workers: 1}
model: {num_layers: 3, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 64}
mini: {depth: 1, new_layers: 1}
optimizer: {clip: 1.0}
pretrain: &mlm {steps: 8, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2}
build_mini: *mlm
adapt: {<<: *mlm, snapshot_at: [1, 5]}
finetune: {max_length: 48, tasks: {
    topic: {kind: classification, train: topic.jsonl, test: {de: topic.jsonl}, labels: [a, b]}}}
engine: {zero_stage: 1, precision: fp32, micro_batch_size: 4}
"""
FILES = {
    "recipe.yaml": RECIPE.encode(),
    "en.txt": b"the sea is near\n" * 20,
    "de.txt": b"das meer ist nah\n" * 20,
    "topic.jsonl": b'{"text": "x y", "label": "a"}\n{"text": "z", "label": "b"}\n',
}
SECTIONS = {
    name: getattr(field.annotation, "model_fields", {})
    for name, field in PaperRecipe.model_fields.items()
}
KEYS = [*SECTIONS, *(f"{name}.{key}" for name, keys in SECTIONS.items() for key in keys)]
KEYS += [
    "data.text.de",
    "finetune.tasks.topic",
    "finetune.tasks.topic.kind",
    "finetune.tasks.topic.test.de",
]
NAMES = [
    "/",
    "a/b",
    "\\",
    "..",
    "''",
    '"\\0"',
    '"\\x1b[2J"',
    "' a'",
    ".a",
    "x" * 5000,
    "../../x",
    '"\\ud800"',
    "DE",
]
NUMBERS = [
    "0",
    "-1",
    "1e9",
    "9" * 40,
    "9" * 5000,
    "18446744073709551616",
    ".inf",
    ".nan",
    "1e400",
    "٣",
    "true",
    "~",
]
YAML = """\
!!int abc|!!float ''|!!bool maybe|!!timestamp z|!!binary '***'|!!python/object/apply:os.system [x]|\
!!set {a, b}|!!omap 3|!!map [a]|!!str [a]|!foo bar|&a [*a]|*nothing|{<<: 3}|\
{<<: [{a: 1}, 2]}|&a {<<: *a}|{? [1, 2] : 3}|{1: a}|{? {a: 1} : 3}|{~: a}|[|{|]|'|"\\q"|%|@|\
- - -|? ? ?|\x00|\ufeff|a: b: c|--- x\n--- y|{a: 1, a: 2}||[]|{}|\
[[]]|[~]|[de, de]|[[1, 0.5], [2, .nan]]|=|<<|{<<: *mlm}"""
VALUES = (NAMES, NUMBERS, [*YAML.split("|"), "[" * 1000, "{a: " * 1000, "!!int " + "9" * 5000])


def bad_override(rng, folder):
    """A key of the schema, or one beside it, with a value that is mostly none for it."""
    key = rng.choice(KEYS)
    if rng.random() < 0.1:
        index = rng.randrange(len(key))
        key = (
            key[:index]
            + rng.choice(["", ".", "..", "\0", "\n", "\ud800", "=", ".a" * 3000])
            + key[index + 1 :]
        )
    return ["flops", "recipe.yaml", f"{key}={rng.choice(rng.choice(VALUES))}"]


def bad_recipe(rng, folder):
    """RECIPE with a value, a line or bytes changed, or in another encoding."""
    lines = RECIPE.split("\n")
    index = rng.randrange(len(lines) - 1)
    how = rng.randrange(4)
    if how == 0:
        lines[index] = f"{lines[index].partition(':')[0]}: {rng.choice(rng.choice(VALUES))}"
    elif how == 1:
        lines.insert(rng.randrange(len(lines)), lines.pop(index))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if how == 2:
        data = spoilt(data, rng)
    elif how == 3:
        data = rng.choice(
            [RECIPE.encode("utf-16"), rng.randbytes(2000), data * 2, data.replace(b"\n", b"\r")]
        )
    (folder / "recipe.yaml").write_bytes(data)
    return ["flops", "recipe.yaml"]


COMMANDS = (
    "run tokenizer prepare adapt evaluate report flops plan extend export-hf pack bits status"
).split()
WORDS = (
    "--ranks --zero --hostfile --rebuild --json --out --pack -x --no-such -- = a=b =b adapt.lr= "
    "show check"
).split()
WORDS += [
    "",
    " ",
    "\n",
    "\udcff",
    "x" * 300,
    "0",
    "-1",
    "9" * 5000,
    "²",
    "none.yaml",
    "en.txt",
    ".",
    "/dev/null",
]


def bad_command_line(rng, folder):
    """A command with words that are mostly not for it; nothing that would train."""
    return [rng.choice([*COMMANDS, *WORDS]), *rng.choices(WORDS, k=rng.randrange(6))]


TASK_LINES = [
    line.encode() for line in ("", "null", "3", "[]", "{}", "text,label", "a,b\rc,d\r", "a\0,b")
]
TASK_LINES += [
    b'{"text": 3, "label": "a"}',
    b'{"text": "x", "label": 1e400}',
    b'{"text": "\\ud800", "label": "a"}',
]
TASK_LINES += [
    b'{"text": "x"',
    b"\xff\xfe",
    b"x" * 200_000,
    b"[" * 100_000,
    b'{"a":' * 5000,
    b'{"data": [3]}',
]
TASK_LINES += [
    b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "\\n", "question": 3}]}]}]}',
    b"9" * 5000,
]


def bad_task_file(rng, folder):
    """A task file with lines that are none; found by `run` before anything is trained."""
    suffix, kind = rng.choice(
        [("jsonl", "classification"), ("tsv", "sentence-pair"), ("json", "qa")]
    )
    (folder / f"t.{suffix}").write_bytes(b"\n".join(rng.choices(TASK_LINES, k=rng.randint(1, 3))))
    task = f"{{kind: {kind}, train: t.{suffix}, test: {{de: t.{suffix}}}}}"
    return ["run", "recipe.yaml", f"finetune.tasks={{t: {task}}}"]


CASES = bad_override, bad_recipe, bad_command_line, bad_task_file


def spoilt(data, rng):
    """Content of a file, cut, flipped, overwritten or replaced."""
    index = rng.randrange(len(data) or 1)
    ways = [
        data[:index],
        data[:index] + rng.randbytes(9) + data[index + 9 :],
        data + data[index:],
        b"",
        b"null",
        b"[]",
    ]
    return rng.choice([*ways, b"\xff\xfe", b'{"files": {}}', b"[" * 50_000])


def make_files(folder):
    """The recipe that is as good as any, and what it names."""
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)


def outcome(command, folder):
    """(exit code, fault) of a command in `folder`; fault: "" where it was held, else why not."""
    before = listing(folder)
    code = None
    raised = ""
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else None
        except BaseException as error:  # a panic of Rust's is no Exception
            raised = repr(error)
    lines = [line for line in err.getvalue().splitlines() if line.startswith("ds-minimodel: ")]
    if code not in (0, 2):
        return code, raised or f"exit code {code}"
    if code == 2 and (
        len(lines) != 1 or not lines[0].isprintable() or "Traceback" in err.getvalue()
    ):
        return code, f"{len(lines)} lines: {err.getvalue()[-300:]}"
    return code, "changed the disk" if code == 2 and listing(folder) != before else ""


def listing(folder):
    """{path: size and time of change} of all files but the lock."""
    files = [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name != ".lock"
    ]
    return {str(file): (file.lstat().st_size, file.lstat().st_mtime_ns) for file in files}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_wrong_is_refused_by_one_line(case, tmp_path, monkeypatch):
    for name, value in CPU.items():  # for which a command would replace its process
        monkeypatch.setenv(name, value)
    make_files(tmp_path / "good")
    assert outcome(["flops", "recipe.yaml"], tmp_path / "good") == (0, "")
    faults = []
    for seed in range(100):
        make_files(tmp_path / str(seed))
        command = case(random.Random(seed), tmp_path / str(seed))
        code, fault = outcome(command, tmp_path / str(seed))
        faults += [f"seed {seed}, {command!r:.200}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)
