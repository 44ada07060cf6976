"""Some hundred inputs at random, at fixed seeds: each is answered, or refused by one line and nothing written."""

import contextlib
import io
import json
import os
import random
import time

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.engine.ranks.launch import CPU

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
tokenizer.character_coverage data data.text data.text.en data.text.de data.blocks data.min_words.de data.held_out
data.workers model model.num_layers model.hidden_size model.num_heads model.max_positions model.dropout mini mini.depth
mini.new_layers mini.depths pretrain pretrain.steps pretrain.batch_size pretrain.seq_length pretrain.lr
pretrain.warmup_steps pretrain.mask_prob pretrain.eps pretrain.clip build_mini adapt adapt.initialisation
adapt.word_vectors adapt.dictionaries adapt.train_positions adapt.depth_schedule adapt.snapshot_every adapt.snapshot_at
finetune finetune.tasks finetune.tasks.topic finetune.tasks.topic.kind finetune.tasks.topic.train
finetune.tasks.topic.test.de finetune.tasks.topic.labels finetune.tasks.topic.columns finetune.seeds finetune.epochs
finetune.max_length finetune.warmup_ratio engine engine.zero_stage engine.precision engine.micro_batch_size
engine.tensor_parallel checkpoint checkpoint.every checkpoint.keep_last checkpoint.keep_every""".split()
LONG = ["x" * 200, "ä" * 150, "x" * 5000, "9" * 5000, "-" + "9" * 5000, "1" + "0" * 100000, "[" * 3000]
LONG += ["[" * 3000 + "]" * 3000, "{a: " * 3000 + "1" + "}" * 3000, "!!int " + "9" * 5000]
NAMES = (
    r"""/ a/b \ .. . '' "\0" "\x1b[2J" "a\nb" a. .a /etc/x ../../x C: nul* "\ud800" "\u2028" "\u202e" ~
de.job.json DE""".split()
    + ["' a'", "'a '"]
)
NUMBERS = """0 -1 1e9 1000000000 9999999999999999999 18446744073709551616 9223372036854775808 2147483648 1000000000000
.inf -.inf .nan 1e400 1e-400 -0.0 1e308 5e-324 0x10 1_000 0o17 1:30 ٣ true ~ 1.0 '1'""".split()
YAML = """!!int abc|!!int ''|!!int 1.5|!!float ''|!!bool maybe|!!timestamp 2024-99-99|!!binary ä
!!python/object/apply:os.system [x]|!!set {a, b}|!!omap 3|!!map [a]|!!str [a]|!!null x|!foo bar|!<tag:x> y|&a [*a]
&a {b: *a}|*nothing|{<<: 3}|{<<: [{a: 1}, 2]}|{<<: {<<: {<<: x}}}|&a {<<: *a}|{? [1, 2] : 3}|{1: 2, 1: 3}|{true: a}
{~: a}|{!!binary YQ==: 1}|[|{|]|'|"\\q"|%|@|`|- - -|? ? ?|\x00|\x07|\ufeff|\u2028|a: b: c|{a: 1, a: 2}||[]|{}|[[]]
[~]|{a: ~}|[de, DE]|[minijoint, minijoint]|[1, 1]|[4, 4, 8]|[[1, 0.5], [2, .nan]]|[[1, 0.5, 3]]|=|<<|{=: 1}
{<<: *mlm}|!!value x""".replace("\n", "|").split("|") + ["|\n x", "--- x\n--- y"]  # fmt: skip


def value(draw):
    return draw.choice(draw.choice((NAMES, NUMBERS, YAML, LONG)))


# --- Generators: each gives (arguments of the command line, {name: bytes} beside FILES or in their place) ---


def override(draw):
    """A key of the schema, or one beside it, with a value that is mostly none for it."""
    key, spoilt = draw.choice(KEYS), draw.random()
    if spoilt < 0.05:
        key += draw.choice((".", "..", ".x", " ", "\n", ".0", ".~", "=", "." + "a" * 3000, ".a" * 3000))
    elif spoilt < 0.1:
        at = draw.randrange(len(key))
        key = key[:at] + draw.choice("\0\n./é\ud800=-%") + key[at + 1 :]
    return ("flops", "recipe.yaml", f"{key}={value(draw)}"), {}


def name(draw):
    """A language, task or folder by a name that not every disk takes."""
    found = draw.choice(NAMES + LONG[:3])
    overrides = (
        (f"languages.source={found}", f"data.text={{{found}: en.txt, de: de.txt}}"),
        (f"languages.targets=[de, {found}]", f"data.text={{en: en.txt, {found}: de.txt, de: de.txt}}"),
        (f"finetune.tasks={{{found}: {{kind: qa, train: x, test: {{de: y}}}}}}",),
        (f"workdir={found}",),
    )
    return ("flops", "recipe.yaml", *draw.choice(overrides)), {}


def recipe(draw):
    """RECIPE with bytes, lines or values changed, or in another encoding."""
    lines, how = RECIPE.split("\n"), draw.randrange(6)
    if how == 0:  # a value
        at = draw.randrange(len(lines) - 1)
        key, colon, _ = lines[at].partition(":")
        lines[at] = f"{key}{colon} {value(draw)}"
    elif how == 1:  # a line is lost, or moved, or there twice
        at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
        line = lines.pop(at) if draw.random() < 0.7 else lines[at]
        lines[to:to] = [line] if draw.random() < 0.7 else []
    elif how == 2:  # a further key
        lines.insert(draw.randrange(len(lines)), f"{' ' * draw.choice((0, 2, 4))}{value(draw)}: {value(draw)}")
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if how == 3:  # bytes
        spoilt = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        data = bytes(spoilt)
    elif how == 4:
        data = data[: draw.randrange(len(data))]
    elif how == 5:
        others = [data.decode().encode(encoding) for encoding in ("utf-16", "utf-32", "utf-16-be", "utf-8-sig")]
        others += [
            draw.randbytes(2000),
            b"\0" * 1000,
            b"\x1f\x8b" + draw.randbytes(100),
            data * 2,
            data + b"---\n" + data,
        ]
        others += [data.replace(*pair) for pair in ((b"\n", b"\r"), (b"en", b"\xe9"), (b" ", b"\t"))]
        data = draw.choice([*others, "".join(f"key{number}: {number}\n" for number in range(2000)).encode()])
    return ("flops", "recipe.yaml"), {"recipe.yaml": data}


STARTS = "run tokenizer prepare pretrain build-mini adapt finetune evaluate report".split()
COMMANDS = [*STARTS, *"flops plan fetch-sample import-hf export-hf hosts pack predict doctor".split()]
WORDS = (
    """--ranks --zero --hostfile --rebuild --with --json --device --world-size --ranks-per-node --local_rank --pack
--head --top --depth --language --set --languages --out --version -x --no-such - -- = a=b =b adapt.lr= show check plug ä
\udcff 0 -1 1e9 ٣ ² nan none.yaml""".split()
    + ["", " ", "\n", "x" * 300, "9" * 5000]
)


def command_line(draw):
    """A command with words that are mostly not for it; nothing that would train."""
    words = [draw.choice([*WORDS, "recipe.yaml", "en.txt", ".", "/dev/null"]) for _ in range(draw.randrange(6))]
    command = draw.choice([*COMMANDS, draw.choice(WORDS)])
    if command in STARTS and "recipe.yaml" in words:
        words.append("no.such.key=1")
    if command in ("fetch-sample", "doctor"):
        words.append("--no-such")
    return (command, *words), {}


DEEP = [b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 2000 + b"]" * 2000]
TASK_LINES = (
    rb"""
null
3
[]
{}
{"text": 3, "label": "a"}
{"text": "x", "label": null}
{"text": "x", "label": 1e400}
{"text": "\ud800", "label": "a"}
{"text": "x", "label": "\ud800"}
{"text": "x"
{"text": "x", "label": "a\nb"}
{"label": "a"}
{"te\nxt": "x"}
text,label
a O
text,label,label""".split(b"\n")
    + DEEP
)
TASK_LINES += [b"\n", b'{"text": ' + DEEP[2] + b', "label": "a"}', b"\xff\xfe", b"\0" * 10, b'"' + b"x" * 200000]
TASK_LINES += [b'"a\nb",c,d', b"a O\rb O\r", b"a\0 O", b"text\tlabel", b"text\tlabel\ttext", b"1\ta" + b"\t" * 8]
TASK_LINES += ["\t".join(["²", "a", *["_"] * 8]).encode()]
QAS = b'{"data": [{"paragraphs": [{"context": "x", "qas": [%s]}]}]}'
ASKED = b'{"id": "1", "question": "q", "answers": [{"text": "x", "answer_start": %s}]}'
SQUAD = [b'{"data": 3}', b'{"data": [3]}', b'{"data": [{"paragraphs": [{}]}]}', QAS % b'{"id": 3}']
SQUAD += [QAS % b'{"id": "\\n", "question": 3}', QAS % (ASKED % (b"9" * 5000)), QAS % (ASKED % b"1e400")]
KINDS = (
    "jsonl classification|csv classification|tsv pair|json qa|txt tagging|conllu tagging|jsonl pair|bin classification"
)


def task_file(draw):
    """A task file with lines that are none; found by `run` before anything is trained."""
    suffix, kind = draw.choice(KINDS.split("|")).split()
    good = {"csv": b"text,label", "tsv": b"sentence1\tsentence2\tlabel", "jsonl": b'{"text": "x", "label": "a"}'}
    lines = [good.get(suffix, b"x O")] * draw.randrange(2)
    lines += draw.choices(SQUAD + TASK_LINES if kind == "qa" else TASK_LINES, k=draw.randint(1, 3))
    task = f"{{kind: {kind}, train: t.{suffix}, test: {{de: t.{suffix}}}}}"
    return ("run", "recipe.yaml", f"finetune.tasks={{t: {task}}}"), {f"t.{suffix}": b"\n".join(lines)}


# --- What becomes of them ---


def fault_of(arguments, files, folder):
    """What is wrong with the outcome of a command in `folder`, into which the files are written; "" if nothing is."""
    for file, data in {**FILES, **files}.items():
        (folder / file).write_bytes(data)
    before, code, began = listing(folder), None, time.process_time()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            return f"raised {error!r:.100}"
    if time.process_time() - began > 5:
        return "over 5 seconds"
    if code == 2:
        lines = [line for line in err.getvalue().split("\n") if not line.startswith("tokenizer ")]  # progress before it
        if len(lines) != 2 or lines[1] or not lines[0].startswith("ds-minimodel: ") or not lines[0].isprintable():
            return f"not one line: {lines}"
        return "wrote something" if listing(folder) != before else "a long line" if len(lines[0]) > 1050 else ""
    return f"code {code}" if code else ""


def listing(folder):
    """All below a folder: path, and a file's size and time of change."""
    facts = {path: path.lstat() for path in folder.rglob("*")}
    return {(path, path.is_dir() or (its.st_size, its.st_mtime_ns)) for path, its in facts.items()}


@pytest.mark.parametrize("generate", [override, name, recipe, command_line, task_file])
def test_what_is_wrong_is_refused_by_one_line(generate, tmp_path, monkeypatch):
    for variable, setting in CPU.items():  # for which a command would replace its process
        monkeypatch.setenv(variable, setting)
    draw, faults = random.Random(2023), []
    for number in range(100):
        (tmp_path / str(number)).mkdir()
        arguments, files = generate(draw)
        if fault := fault_of(arguments, files, tmp_path / str(number)):
            faults.append(json.dumps([fault, *(os.fsdecode(text)[:120] for text in arguments)]))
    assert not faults, "\n".join(faults)
