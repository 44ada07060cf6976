"""Bad recipes, overrides, command lines and task files, drawn at random, and what became of each.

A case is a few files and a command line that names them; `outcome` runs it in this process and says whether it was
held: answered, or refused by exit code 2 with one line on standard error and nothing written. Everything is a
function of the random.Random given, so that a fault is found again by its seed. Grown by who needs more of it: a
generator is a function of (rng) that gives a Case, in CASES.
"""

import contextlib
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

RECIPE = """\
workdir: run
seed: 3
systems: [bl_base, minijoint]
languages: {source: en, targets: [de]}
tokenizer: {vocab_size: 60, character_coverage: 0.99, input_sentences: 1000}
data:
  text: {en: en.txt, de: [de.txt]}
  min_words: {de: 3}
  workers: 1
model: {num_layers: 3, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 64}
mini: {depth: 1, new_layers: 1, depths: [1, 2, 3]}
pretrain: &mlm {steps: 8, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2, clip: 1.0}
build_mini: *mlm
adapt:
  <<: *mlm
  snapshot_every: 4
  snapshot_at: [1, 5]
finetune:
  seeds: 2
  max_length: 48
  tasks:
    topic: {kind: classification, train: topic.jsonl, test: {de: topic.jsonl}, labels: [a, b]}
engine: {zero_stage: 1, precision: fp32, micro_batch_size: 4}
checkpoint: {every: 2, keep_last: 2}
"""
# A recipe that is as good as any, and the files that it names.
FILES = {
    "recipe.yaml": RECIPE.encode(),
    "en.txt": b"the sea is near\n" * 20,
    "de.txt": b"das meer ist nah\n" * 20,
    "topic.jsonl": b'{"text": "x y", "label": "a"}\n{"text": "z", "label": "b"}\n',
}

KEYS = """workdir seed systems base languages languages.source languages.targets tokenizer tokenizer.vocab_size
tokenizer.character_coverage tokenizer.input_sentences data data.text data.text.en data.text.de data.blocks
data.min_words data.min_words.de data.held_out data.workers
model model.num_layers model.hidden_size model.num_heads model.ffn_size
model.max_positions model.dropout model.attention_dropout mini mini.depth mini.new_layers mini.depths pretrain
pretrain.steps pretrain.batch_size pretrain.seq_length pretrain.lr pretrain.warmup_steps pretrain.mask_prob
pretrain.weight_decay pretrain.beta1 pretrain.eps pretrain.clip build_mini adapt adapt.initialisation
adapt.word_vectors adapt.dictionaries adapt.train_positions adapt.depth_schedule adapt.snapshot_every
adapt.snapshot_at adapt.lr finetune finetune.tasks finetune.tasks.topic finetune.tasks.topic.kind
finetune.tasks.topic.train finetune.tasks.topic.test finetune.tasks.topic.test.de finetune.tasks.topic.labels
finetune.tasks.topic.columns finetune.tasks.topic.lr finetune.tasks.topic.epochs finetune.seeds finetune.epochs
finetune.batch_size finetune.max_length finetune.lr finetune.warmup_ratio engine engine.zero_stage engine.precision
engine.micro_batch_size engine.tensor_parallel checkpoint checkpoint.every checkpoint.keep_last""".split()

NAMES = (
    "/",
    "a/b",
    "\\",
    "..",
    ".",
    "''",
    '"\\0"',
    '"\\x1b[2J"',
    '"a\\nb"',
    "' a'",
    "'a '",
    "a.",
    ".a",
    "x" * 200,
    "ä" * 150,
    "x" * 5000,
    "/etc/x",
    "../../x",
    "C:",
    "nul*",
    '"\\ud800"',
    '"\\u2028"',
    '"\\u202e"',
    "~",
    "de.job.json",
    "DE",
)
NUMBERS = (
    "0",
    "-1",
    "1e9",
    "1000000000",
    "9" * 19,
    "9" * 40,
    "9" * 5000,
    "-" + "9" * 5000,
    "18446744073709551616",
    "18446744073709551615",
    "9223372036854775808",
    "2147483648",
    "1000000000000",
    "1000000000000000000",
    ".inf",
    "-.inf",
    ".nan",
    "1e400",
    "1e-400",
    "-0.0",
    "1e308",
    "5e-324",
    "0x10",
    "1_000",
    "0o17",
    "1:30",
    "٣",
    "true",
    "~",
    "1.0",
    "'1'",
)
YAML = (
    "!!int abc",
    "!!int ''",
    "!!int 0x",
    "!!int 1.5",
    "!!float abc",
    "!!float ''",
    "!!bool maybe",
    "!!timestamp z",
    "!!timestamp 2024-99-99",
    "!!binary '***'",
    "!!binary ä",
    "!!python/object:os.system x",
    "!!python/object/apply:os.system [x]",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!omap 3",
    "!!pairs [a]",
    "!!map [a]",
    "!!seq {a: 1}",
    "!!str [a]",
    "!!null x",
    "!foo bar",
    "!<tag:x> y",
    "&a [*a]",
    "&a {b: *a}",
    "*nothing",
    "{<<: 3}",
    "{<<: [1, 2]}",
    "{<<: [{a: 1}, 2]}",
    "{<<: {<<: {<<: x}}}",
    "&a {<<: *a}",
    "{? [1, 2] : 3}",
    "{? {a: 1} : 3}",
    "{1: 2, 1: 3}",
    "{1: a}",
    "{true: a}",
    "{~: a}",
    "{!!binary YQ==: 1}",
    "{1.5: {~: 2}}",
    "[",
    "{",
    "]",
    "'",
    '"\\q"',
    "%",
    "@",
    "`",
    "- - -",
    "? ? ?",
    "[" * 3000,
    "[" * 3000 + "]" * 3000,
    "{a: " * 3000 + "1" + "}" * 3000,
    "!!int " + "9" * 5000,
    "1" + "0" * 100000,
    '"\\ud800"',
    "\x00",
    "\x07",
    "\ufeff",
    "\u2028",
    "a: b: c",
    "|\n x",
    "--- x\n--- y",
    "{a: 1, a: 2}",
    "",
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    "[~]",
    "{a: ~}",
    "[de, de]",
    "[de, DE]",
    "[minijoint, minijoint]",
    "[1, 1]",
    "[4, 4, 8]",
    "[[1, 0.5], [2, .nan]]",
    "[[1, 0.5, 3]]",
    "[[1]]",
    "=",
    "<<",
    "{=: 1}",
    "{<<: *mlm}",
    "!!value x",
    "!!merge x",
)


@dataclass(frozen=True)
class Case:
    """files: name -> bytes, beside FILES or in their place. arguments: of the command line, in their folder."""

    kind: str
    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


def _value(rng: random.Random) -> str:
    return rng.choice(rng.choice((NAMES, NUMBERS, YAML)))


def bad_override(rng: random.Random) -> Case:
    """A key of the schema, or one beside it, with a value that is mostly none for it."""
    key = rng.choice(KEYS)
    spoilt = rng.random()
    if spoilt < 0.05:
        key = key + rng.choice((".", "..", ".x", " ", "\n", ".0", ".~", "=", "." + "a" * 3000, ".a" * 3000))
    elif spoilt < 0.1:
        at = rng.randrange(len(key))
        key = key[:at] + rng.choice("\0\n./é\ud800=-%") + key[at + 1 :]
    return Case("override", ("flops", "recipe.yaml", f"{key}={_value(rng)}"))


def bad_name(rng: random.Random) -> Case:
    """A language, task or folder by a name that not every disk takes."""
    name = rng.choice(NAMES)
    override = rng.choice(
        (
            ("languages.source={name}", "data.text={{{name}: en.txt, de: de.txt}}"),
            ("languages.targets=[{name}]", "data.text={{{name}: en.txt, en: de.txt}}"),
            ("languages.targets=[de, {name}]", "data.text={{en: en.txt, {name}: de.txt, de: de.txt}}"),
            ("finetune.tasks={{{name}: {{kind: qa, train: x, test: {{de: y}}}}}}",),
            ("workdir={name}",),
        )
    )
    return Case("name", ("flops", "recipe.yaml", *(text.format(name=name) for text in override)))


def bad_recipe(rng: random.Random) -> Case:
    """RECIPE with bytes, lines or values changed, or in another encoding."""
    text, how = RECIPE, rng.randrange(6)
    lines = text.split("\n")
    if how == 0:  # a value
        at = rng.randrange(len(lines) - 1)
        key, colon, _ = lines[at].partition(":")
        lines[at] = f"{key}{colon} {_value(rng)}"
    elif how == 1:  # a line is lost, or moved, or there twice
        at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
        line = lines.pop(at) if rng.random() < 0.7 else lines[at]
        lines.insert(to, line) if rng.random() < 0.7 else None
    elif how == 2:  # a further key
        lines.insert(rng.randrange(len(lines)), f"{' ' * rng.choice((0, 2, 4))}{_value(rng)}: {_value(rng)}")
    text = "\n".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    if how == 3:  # bytes
        spoilt = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        data = bytes(spoilt)
    elif how == 4:
        data = data[: rng.randrange(len(data))]
    elif how == 5:
        data = rng.choice(
            (
                text.encode("utf-16"),
                text.encode("utf-32"),
                text.encode("utf-16-be"),
                b"\xef\xbb\xbf" + data,
                data.replace(b"\n", b"\r"),
                data.replace(b"en", b"\xe9"),
                rng.randbytes(2000),
                b"\0" * 1000,
                b"\x1f\x8b" + rng.randbytes(100),
                data.replace(b" ", b"\t"),
                data * 2,
                data + b"---\n" + data,
                "".join(f"key{number}: {number}\n" for number in range(2000)).encode(),
            )
        )
    return Case("recipe", ("flops", "recipe.yaml"), {"recipe.yaml": data})


COMMANDS = """run tokenizer prepare pretrain build-mini adapt finetune evaluate report flops plan fetch-sample import-hf
export-hf hosts pack predict doctor""".split()
WORDS = (
    "--ranks --zero --hostfile --rebuild --with --json --device --peak --measure --step --local_rank --pack "
    "--head --top --depth --language --set --languages --out --version -x --no-such - -- = a=b =b adapt.lr= show "
    "check plug"
).split() + ["", " ", "\n", "ä", "\udcff", "x" * 300, "0", "-1", "1e9", "9" * 5000, "٣", "²", "nan", "none.yaml"]


def bad_command_line(rng: random.Random) -> Case:
    """A command with words that are mostly not for it; nothing that would train."""
    words = [rng.choice([*WORDS, "recipe.yaml", "en.txt", ".", "/dev/null"]) for _ in range(rng.randrange(6))]
    command = rng.choice([*COMMANDS, rng.choice(WORDS)])
    if command in STARTS and "recipe.yaml" in words:
        words.append("no.such.key=1")
    if command in ("fetch-sample", "doctor"):
        words.append("--no-such")
    return Case("command line", (command, *words))


STARTS = COMMANDS[:9]

DEEP = (b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 2000 + b"]" * 2000)
TASK_LINES = (
    b"",
    b"\n",
    b"null",
    b"3",
    b"[]",
    b"{}",
    b'{"text": 3, "label": "a"}',
    b'{"text": "x", "label": null}',
    b'{"text": "x", "label": 1e400}',
    b'{"text": "x", "label": ' + b"9" * 5000 + b"}",
    b'{"text": ' + DEEP[2] + b', "label": "a"}',
    b'{"text": "\\ud800", "label": "a"}',
    b'{"text": "x", "label": "\\ud800"}',
    b'{"text": "x"',
    b'{"text": "x", "label": "a\\nb"}',
    b'{"label": "a"}',
    b"\xff\xfe",
    b"\x00" * 10,
    b'{"te\\nxt": "x"}',
    b"x" * 200000,
    b'"' + b"x" * 200000,
    b"text\tlabel",
    b"text,label",
    b'"a\nb",c,d',
    b"a\tb\tc",
    b"text\tlabel\ttext",
    b"text,label,label",
    b"a O\rb O\r",
    b"a\0 O",
    b"\t".join([b"1", b"a", *[b""] * 8]),
    "\t".join(["²", "a", *["_"] * 8]).encode(),
    *DEEP,
)
SQUAD = (
    b'{"data": 3}',
    b'{"data": [3]}',
    b'{"data": [{"paragraphs": [{}]}]}',
    b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": 3}]}]}]}',
    b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "\\n", "question": 3}]}]}]}',
    b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "question": "q", "answers": '
    b'[{"text": "x", "answer_start": ' + b"9" * 5000 + b"}]}]}]}]}",
    b'{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "question": "q", "answers": '
    b'[{"text": "x", "answer_start": 1e400}]}]}]}]}',
)


def bad_task_file(rng: random.Random) -> Case:
    """A task file with lines that are none; found by `run` before anything is trained."""
    suffix, kind = rng.choice(
        (
            ("jsonl", "classification"),
            ("csv", "classification"),
            ("tsv", "pair"),
            ("json", "qa"),
            ("txt", "tagging"),
            ("conllu", "tagging"),
            ("jsonl", "pair"),
            ("bin", "classification"),
            ("", "classification"),
        )
    )
    pool = SQUAD + TASK_LINES if kind == "qa" else TASK_LINES
    good = {"csv": b"text,label", "tsv": b"sentence1\tsentence2\tlabel", "jsonl": b'{"text": "x", "label": "a"}'}
    lines = [good.get(suffix, b"x O")] * rng.randrange(2) + rng.choices(pool, k=rng.randint(1, 3))
    task = f"{{kind: {kind}, train: t.{suffix}, test: {{de: t.{suffix}}}}}"
    arguments = ("run", "recipe.yaml", f"finetune.tasks={{t: {task}}}")
    return Case("task file", arguments, {f"t.{suffix}": b"\n".join(lines)})


CASES: tuple[Callable[[random.Random], Case], ...] = (
    bad_override,
    bad_name,
    bad_recipe,
    bad_command_line,
    bad_task_file,
)


def cases(seed: int, number: int) -> Iterator[Case]:
    """`number` cases of all kinds in turn."""
    rng = random.Random(seed)
    for index in range(number):
        yield CASES[index % len(CASES)](rng)


@dataclass(frozen=True)
class Outcome:
    """Of a case. code: exit code, None where an exception came out. fault: "" where it was held, else why not."""

    case: Case
    code: int | None
    error: str
    seconds: float
    fault: str


def outcome(case: Case, folder: Path) -> Outcome:
    """What becomes of a case in `folder`, into which its files are written; a command that ends well may write."""
    from ds_minimodel.cli.main import main

    for name, data in {**FILES, **case.files}.items():
        (folder / name).write_bytes(data)
    before = listing(folder)
    out, err, raised, code = io.StringIO(), io.StringIO(), "", None
    began = time.process_time()  # beside other work, too
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(case.arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else None
        except BaseException as error:
            raised = type(error).__name__
    seconds = time.process_time() - began
    said = err.getvalue()
    fault = ""
    if code is None:
        fault = f"raised {raised}"
    elif code == 2:
        lines = [line for line in said.split("\n") if not line.startswith("tokenizer ")]  # progress before a refusal
        if len(lines) != 2 or lines[-1] or not lines[0].startswith("ds-minimodel: "):
            fault = f"{len(lines) - 1} lines"
        elif not lines[0].isprintable():
            fault = "not printable"
        elif listing(folder) != before:
            fault = f"left {sorted(listing(folder) - before)[:3]}"
        elif len(said) > 1050:
            fault = "a long line"
    elif code:
        fault = f"code {code}"
    if seconds > 5:
        fault = fault or "over 5 seconds"
    return Outcome(case, code, said, seconds, fault)


def listing(folder: Path) -> set[tuple[str, int, int]]:
    """All below a folder: path, and a file's size and time of change."""
    found = set()
    for path, folders, files in os.walk(folder):
        found |= {(os.path.join(path, name), 0, 0) for name in folders}
        for name in files:
            facts = os.lstat(os.path.join(path, name))
            found.add((os.path.join(path, name), facts.st_size, facts.st_mtime_ns))
    return found


def describe(found: Outcome) -> str:
    """A line on an outcome."""
    return json.dumps([found.fault, found.case.kind, [text[:120] for text in found.case.arguments], found.error[:300]])
