"""A world in miniature for the whole pipeline: two made-up languages, one a letter-for-letter image
of the other, with a topic task and questions, and a recipe that runs in seconds.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ds_minimodel.artifacts.models import load_model
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.launch.hosts import CPU
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.foreign_models import save_llama

from ..docs import ROOT
from ..forks import run_ranks

TOPICS = {
    "sea": "wave boat fish salt shore wind",
    "farm": "cow field barn hay seed plough",
    "town": "street shop bridge tower market lamp",
}
COMMON = "the a old new small great near far sees has makes finds and with".split()
SECOND = str.maketrans("abcdefghijklmnopqrstuvwxyz", "qwertzuiopasdfghjklyxcvbnm")

RECIPE = """
workdir: {folder}/run
seed: 3
systems: [bl_base, bl_small, minijoint, minipost]
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocab_size: 60}}
data: {{blocks: complete, workers: 1, held_out: 0,
       text: {{en: {folder}/en.txt, xx: {folder}/xx.txt}}}}
model: {{num_layers: 3, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 64,
        dropout: 0.1, attention_dropout: 0.1}}
mini: {{depth: 1, new_layers: 1}}
pretrain: {{steps: 8, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2}}
build_mini: {{steps: 8, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2}}
adapt: {{steps: 8, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2, snapshot_every: 4}}
finetune: {{seeds: 2, epochs: 1, batch_size: 8, lr: 1e-3, max_length: 48, tasks: {{
    topic: {{kind: classification, train: {folder}/topic.en.jsonl,
            test: {{en: {folder}/topic.en.jsonl, xx: {folder}/topic.xx.jsonl}}}},
    qa: {{kind: qa, question_length: 8, train: {folder}/qa.en.json,
         test: {{en: {folder}/qa.en.json, xx: {folder}/qa.xx.json}}}}}}}}
engine: {{zero_stage: 1, precision: fp32, micro_batch_size: 4}}
checkpoint: {{every: 2, keep_last: 2}}
"""


def sentence(rng, topic):
    words = [
        rng.choice(COMMON if rng.random() < 0.5 else TOPICS[topic].split())
        for _ in range(rng.randint(4, 9))
    ]
    return " ".join(words)


def squad(*questions):
    """A file of questions (id, question, context, answer, its start in the context) in SQuAD's
    form.
    """
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": name,
                    "question": asked,
                    "answers": [{"text": answer, "answer_start": start}],
                }
            ],
        }
        for name, asked, text, answer, start in questions
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def make_world(folder):
    """Write text, tasks and the recipe below `folder`; the recipe's path."""
    rng = random.Random(0)
    pages = [
        (topic, [sentence(rng, topic) for _ in range(rng.randint(2, 5))])
        for topic in rng.choices(list(TOPICS), k=150)
    ]
    questions = []
    for number, (_, lines) in enumerate(pages[:12]):
        context = ". ".join(lines)
        answer = lines[1].split()[0]
        questions.append((str(number), lines[1], context, answer, context.index(lines[1])))
    for language in ("en", "xx"):

        def spell(text, language=language):
            return text if language == "en" else text.translate(SECOND)

        text = "\n\n".join("\n".join(map(spell, lines)) for _, lines in pages)
        (folder / f"{language}.txt").write_text(text + "\n")
        with open(folder / f"topic.{language}.jsonl", "w") as file:
            for topic, lines in pages[:60]:
                file.write(json.dumps({"text": spell(lines[0]), "label": topic}) + "\n")
        asked = [(name, *map(spell, texts), start) for name, *texts, start in questions]
        (folder / f"qa.{language}.json").write_text(squad(*asked))
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder))
    return path


def make_llama_world(folder):
    """A world of four times the text, with a Llama in `theirs` that knows its English: that
    folder.
    """
    make_world(folder)
    for path in (folder / "en.txt", folder / "xx.txt"):
        path.write_text(path.read_text() * 4)
    return save_llama(folder / "en.txt", folder / "theirs", "$A")


def prepare(recipe, *overrides):
    """Read and tokenise the text of a recipe, whose path it returns."""
    for step in ("corpus", "tokenizer", "prepare"):
        run_step(STEPS[step], load_recipe(recipe, overrides))
    return recipe


def read_in(world, folder):
    """A workdir in `folder` with the text of a run in `world` as it was read and tokenised."""
    for part in ("corpus", "tokenizer", "tokens"):
        shutil.copytree(world / "run" / part, folder / "run" / part)
    return folder / "run"


def run_two_ranks(recipe, *overrides, declared_in="tests.pipeline.tensor_ranks"):
    """Take the steps of a recipe that train or score on two ranks; the workdir."""
    codes, errors = run_ranks(2, f"{declared_in}:do_steps", recipe, overrides)
    assert codes == [0, 0], errors
    return recipe.parent / "run"


@pytest.fixture(autouse=True)
def ready_for_cpu(monkeypatch):
    """The settings for which a command would replace its process, here pytest's."""
    for name, value in CPU.items():
        monkeypatch.setenv(name, value)


def stop_when(process, reached, number=signal.SIGKILL):
    """Send a signal once `reached()` holds; (exit code, standard error)."""
    deadline = time.monotonic() + 120
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, f"ended before it could be stopped: {process.communicate()[1]}"
    process.send_signal(number)
    _, err = process.communicate(60)
    return process.returncode, err


def copy_of(world, tmp_path):
    """The recipe of a copy of the finished world, to be damaged or gone on with."""
    shutil.copytree(world.parent, tmp_path / "copy")
    text = world.read_text().replace(str(world.parent), str(tmp_path / "copy"))
    (tmp_path / "copy/recipe.yaml").write_text(text)
    return tmp_path / "copy/recipe.yaml"


@pytest.fixture(scope="session")
def world(made_once):
    """Recipe of a pipeline that has run to its end, undisturbed.

    scripts/gpu_check.sh has made it, with Python started as users start it.
    """

    def make(folder):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = ["bash", ROOT / "scripts/gpu_check.sh", "--cpu", "--out", folder, "pipeline"]
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout

    return made_once("world", make) / "pipeline/recipe.yaml"


def assert_shared_rows_are_the_bases(base, workdir, target):
    vocabularies = [open_tokenizer(workdir / "tokenizer" / language) for language in ("en", target)]
    assert vocabularies[0].sha256 == open_tokenizer(base).sha256
    assert vocabularies[1].vocabulary.size == 60
    first = load_file(
        workdir / "adapt/minipost" / target / "snapshots/step-00000000/embeddings.safetensors"
    )["tokens"]
    source = load_model(base)[1].embeddings["tokens"]
    pieces = [vocabulary.pieces() for vocabulary in vocabularies]
    shared = [piece for piece in pieces[1] if piece in pieces[0] and piece != "<pad>"]
    assert {"▁", "a", "<mask>"} <= set(shared)
    assert all(
        first[pieces[1].index(piece)].equal(source[pieces[0].index(piece)]) for piece in shared
    )


def held_out(workdir, name):
    """{step: {score: value}} in the metrics of a training run."""
    lines = (workdir / name / "run/metrics.jsonl").read_text().splitlines()
    scores = {
        line["step"]: {key: value for key, value in line.items() if key.startswith("held_out/")}
        for line in map(json.loads, lines)
    }
    return {step: found for step, found in scores.items() if found}


def weights(workdir):
    return {
        str(path.relative_to(workdir)): load_file(path)
        for path in sorted(workdir.rglob("*.safetensors"))
    }


def assert_same_weights(workdir, other):
    assert weights(workdir).keys() == weights(other).keys()
    for file, tensors in weights(workdir).items():
        assert all(tensor.equal(weights(other)[file][name]) for name, tensor in tensors.items()), (
            file
        )
