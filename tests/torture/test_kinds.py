"""Every kind of body through every system and kind of task, to a report; what is finetuned answers
in transformers as it does here.
"""

import json
import random

import pytest
import torch
import transformers

from ds_minimodel.artifacts.adaptation import load_adaptation, plug
from ds_minimodel.artifacts.models import load_body, load_task_model
from ds_minimodel.evaluation import FINETUNED, task_of
from ds_minimodel.export.folder import export_hf
from ds_minimodel.hf.names import ARCHITECTURES
from ds_minimodel.models import BODIES
from tests.helpers.files import read_json

from ..forks import done
from ..pipeline.conftest import SECOND, TOPICS, make_world, sentence

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
FOUR = "systems=[bl_base, bl_small, minijoint, minipost]"
SIX = "systems=[bl_base, bl_small, minijoint, minipost, full, lora]"
# Of one key head; two heads of 16.
GROUPED = ["model.num_kv_heads=1", "model.head_size=16"]


def write_tasks(folder):
    """Files of all kinds of tasks in both languages: {kind: task as a recipe has it}."""
    for language in ("en", "xx"):
        rng = random.Random(2)
        pairs = []

        def spell(text, language=language):
            return text if language == "en" else text.translate(SECOND)

        for _ in range(24):
            first, second = rng.choices(list(TOPICS), k=2)
            texts = [spell(sentence(rng, topic)) for topic in (first, second)]
            label = "same" if first == second else "other"
            pairs.append({"sentence1": texts[0], "sentence2": texts[1], "label": label})
        text = (folder / f"{language}.txt").read_text().split("\n\n")[:5]
        (folder / f"sentence-pair.{language}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        (folder / f"bits-per-byte.{language}.txt").write_text("\n\n".join(text))
        (folder / f"topic.{language}.jsonl").rename(folder / f"classification.{language}.jsonl")
    tasks = {}
    for kind in (*FINETUNED, "bits-per-byte"):
        files = {language: str(*folder.glob(f"{kind}.{language}.*")) for language in ("en", "xx")}
        tasks[kind] = {"kind": kind, "test": files} | (
            {"train": files["en"]} if kind in FINETUNED else {}
        )
    tasks["qa"]["question_length"] = 8
    return tasks


@pytest.mark.parametrize("kind", BODIES)
def test_kind(kind, tmp_path):
    recipe = make_world(tmp_path)
    tasks = write_tasks(tmp_path)
    config = BODIES[kind]
    options = [f"model.kind={kind}", "finetune.seeds=1", "adapt.rank=2"]
    options += [key for key in GROUPED if key.split(".")[1].split("=")[0] in config.model_fields]
    if kind not in ("roberta", "bert"):
        options += ["tokenizer.kind=byte-bpe", "tokenizer.vocab_size=300"]
    scored = {name: task for name, task in tasks.items() if name not in FINETUNED and config.causal}
    tasks = {name: task for name, task in tasks.items() if name in FINETUNED or name in scored}
    for systems, chosen in ((FOUR, tasks), (SIX, scored)):
        workdir = f"workdir={tmp_path}/{len(systems)}"
        done(f"run {recipe}", *options, systems, workdir, f"finetune.tasks={json.dumps(chosen)}")
    served = {ending for architecture in ARCHITECTURES[kind] for ending in architecture.endings}
    for model in sorted((tmp_path / f"{len(FOUR)}/finetune").glob("*/*/*/model")):
        task = FINETUNED[model.parts[-3]]
        pack = tmp_path / f"{len(FOUR)}/adapt" / model.parts[-4] / "xx/pack"
        out = tmp_path / "hf" / model.parts[-4]
        if task.hugging_face_class in served:
            assert_same_logits(model, pack, out / task.name, task)


def assert_same_logits(folder, pack_folder, out, task):
    """Of padded rows of random ids."""
    body = load_body(folder)
    pack = load_adaptation(pack_folder)
    kind, labels = task_of(folder, body)
    module = kind.module(body.config, len(pack.embeddings["tokens"]), labels).eval()
    load_task_model(module, body, folder)
    plug(module, pack, body)
    out.parent.mkdir(parents=True, exist_ok=True)
    export_hf(folder, out, pack_folder)
    (name,) = read_json(out / "config.json")["architectures"]
    theirs = getattr(transformers, name).from_pretrained(out).eval()
    tokens = torch.randint(
        5, len(pack.embeddings["tokens"]) - 1, (3, 40), generator=torch.Generator().manual_seed(0)
    )
    tokens[:, 0] = 0
    lengths = torch.tensor([40, 7, 23], dtype=torch.int32)
    real = torch.arange(40) < lengths[:, None]
    batch = {"tokens": tokens.where(real, 1), "lengths": lengths}
    with torch.no_grad():
        expected = theirs(batch["tokens"], attention_mask=real.long())
        found = module.logits(
            batch
            | ({"loss_positions": torch.zeros(3, 1, dtype=torch.int64)} if kind.reads_start else {})
        )
    if kind.name == "qa":
        expected.logits = torch.stack((expected.start_logits, expected.end_logits), -1)
    real = torch.ones(3, dtype=torch.bool) if kind.reads_start else real
    torch.testing.assert_close(found[real], expected.logits[real], atol=1e-6, rtol=1e-5)
