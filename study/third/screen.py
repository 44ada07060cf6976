"""The screen of the third study: ways to train a language's new rows, at equal FLOPs, scored in the whole body.

    python study/third/screen.py FOLDER LANGUAGE WAY RATE THOUSANDS [SEED]

trains the way (ways.py) at a rate for as many FLOPs as the whole body takes for so many thousand tokens, and adds a
line of JSON to FOLDER/screen.jsonl, unless it is there. FOLDER has texts.py's files, `base` and `runs/third`
(run.sh). Bits a byte are from at most 600 bytes of context, whatever the vocabulary.
"""

import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from ways import FIT_BLOCKS, TEACH, WAYS, Model, Way, add_adapters, fit_flops, run, step_flops

from ds_minimodel.artifacts.models import load_model
from ds_minimodel.models.flops import Workload, executed_layer
from ds_minimodel.models.trainable import load_into
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.tasks.batches import INFERENCE_TOKENS, inference_batches
from ds_minimodel.tasks.likelihood import Documents, Text, TextConfig
from ds_minimodel.vocabulary.tokenizer import Tokenizer, open_tokenizer

BATCH, LENGTH = 8, 128  # of new pieces; old ones have as many bytes
WARM_UP = 0.1
ROWS_RATE = 4e-3  # of new rows where all weights train
CONTEXT = 600
BRIEF = 100  # thousands below which a run is scored on the manual and the beginning of the English one alone
PASSES = 3  # of "untied" over its text, of which the first alone runs the body
DTYPE = torch.bfloat16


class World:
    """The body, vocabularies and texts of a language."""

    def __init__(self, folder: Path, language: str):
        self.folder, self.language = folder, language
        self.base, self.english = load_model(folder / "base")
        self.old = open_tokenizer(folder / "base")
        self.new = open_tokenizer(folder / "runs" / "third" / "tokenizer" / language)
        self.kept = self.new.vocabulary.num_base
        # New merges go on where the old ones end, so each new piece is a row of old ones, wherever it stands.
        self.parts = self.old.cut(self.new.pieces()[self.kept :])
        assert self.old.scored_after is not None
        self.end = self.old.scored_after

    def model(self, way: Way) -> Model:
        config = self.base.config
        body = config.make_body(self.base.head_depths)
        load_into(body, self.base.tensors)
        body = body.to(DTYPE).eval().requires_grad_(way.full)
        tokens = self.english.embeddings["tokens"].float()
        rows = torch.stack([tokens[part].mean(0) for part in self.parts])
        kept = tokens.to(DTYPE)
        if way.old:
            rows = rows[:0]
        model = Model(body, kept, nn.Parameter(rows), way)
        if way.apart:
            model.extra = nn.Parameter(torch.zeros_like(rows))
        if way.untied:
            model.extra = nn.Parameter(rows.clone())
        if way.rank:
            model.adapters = list(add_adapters(body, way))
        if way.full:
            model.kept = nn.Parameter(kept)
            model.adapters = [*body.parameters(), model.kept]
        return model

    def text(self, name: str) -> Documents:
        path = self.folder / f"{name}.txt"
        return Documents([text.strip("\n") for text in path.read_text("utf-8").split("\n\n") if text.strip()])

    def ids(self, tokenizer: Tokenizer) -> list[list[int]]:
        """Documents of the training text, the text's end before each."""
        return [[self.end, *ids] for ids in tokenizer.encode(self.text(f"{self.language}.train").texts)]


def blocks_of(documents: list[list[int]], length: int) -> Tensor:
    """All documents one after the other, in sequences of `length`, (sequences, length)."""
    flat = torch.tensor([id for document in documents for id in document])
    return flat[: len(flat) // length * length].view(-1, length)


def bits_per_byte(model: Model, tokenizer: Tokenizer, text: Documents, num_bytes: int = 0) -> float:
    """Of a text, or about its first bytes."""
    texts, used = [], 0
    for document in text.texts:
        if num_bytes and used >= num_bytes:
            break
        texts.append(document)
        used += len(document.encode())
    records = Documents(texts)
    encoded = Text().encode(tokenizer, records, TextConfig(kind="bits-per-byte", test={}, context_bytes=CONTEXT), 1024)
    nats = 0.0
    for _, batch in inference_batches(encoded.examples, INFERENCE_TOKENS["cpu"]):
        losses = model.token_losses(torch.from_numpy(batch["tokens"])).float().numpy()
        real = np.arange(1, batch["tokens"].shape[1]) < batch["lengths"][:, None]
        nats += float(np.where(real, losses, 0).sum(dtype=np.float64))
    return nats / math.log(2) / records.num_bytes


class Plan:
    """The steps of a run: which way each goes, and the FLOPs of all."""

    def __init__(self, world: World, way: Way, model: Model, budget: float, old_length: int):
        config, layers = world.base.config, world.base.config.num_layers
        length = old_length if way.old else LENGTH
        size = world.kept + (0 if way.old else len(world.parts))
        work = Workload(config, size, length, 1.0, BATCH, 1, 0 if way.old or way.full else world.kept)
        adapters = sum(p.numel() for p in model.adapters) if way.rank else 0
        self.of = lambda kind: step_flops(kind, work, layers, adapters)
        self.aside = fit_flops(way, work, layers) if way.fitted else 0.0
        self.stages: list[tuple[Way, int]] = []
        budget -= self.aside
        if way.caches:
            cached = Way("", 0, 0, runs_all=False, inputs=False)
            self.each = [self.of(way), *[self.of(cached)] * (PASSES - 1)]
            steps = round(budget / sum(self.each))
            self.stages = [(way, steps * PASSES)]
            self.flops = self.aside + steps * sum(self.each)
            return
        rest = 1.0
        if way.first:
            first = TEACH if way.first == TEACH.name else WAYS[way.first]
            cost = self.teach_flops(work, world, old_length) if first is TEACH else self.of(first)
            steps = round(way.share * budget / cost)
            self.stages.append((first, steps))
            rest = 1 - way.share
            self.flops = steps * cost
        else:
            self.flops = 0.0
        last = WAYS["whole"] if way.name == "tail" else way
        cost = self.of(last)
        self.stages.append((last, round(rest * budget / cost)))
        self.flops += self.aside + self.stages[-1][1] * cost

    @staticmethod
    def teach_flops(work: Workload, world: World, old_length: int) -> float:
        config = world.base.config
        old = Workload(config, world.kept, old_length, 1.0)
        (layer, *_), depth = work.layers(config.num_layers), TEACH.bottom
        student = executed_layer(work, layer, LENGTH, passes_back=True)
        return BATCH * depth * (student + executed_layer(old, layer, old_length))

    @property
    def steps(self) -> int:
        return sum(steps for _, steps in self.stages)

    def way_at(self, step: int) -> Way:
        for way, steps in self.stages:
            if step < steps:
                return way
            step -= steps
        raise AssertionError(step)


def teach(model: Model, tokens_BS: Tensor, world: World) -> Tensor:
    """Distance of the states after the lowest layers from those that the old pieces of the same text have there."""
    old, ends = [], []
    for row in tokens_BS.tolist():
        ids, at = [], []
        for token in row:
            ids += world.parts[token - world.kept] if token >= world.kept else [token]
            at.append(len(ids) - 1)
        old.append(ids)
        ends.append(at)
    width = max(map(len, old))
    old_BS = torch.tensor([ids + [0] * (width - len(ids)) for ids in old])
    layers = model.body.layers[: TEACH.bottom]
    with torch.no_grad():
        states = run(layers, model.body.embed(F.embedding(old_BS, model.kept), None, None))
        places = torch.tensor(ends)[..., None].expand(-1, -1, states.shape[-1])
        wanted = states.gather(1, places).float()
    embedded, _ = model.tables(model.way.__class__("", outputs=False))
    found = run(layers, model.body.embed(F.embedding(tokens_BS, embedded), None, None)).float()
    wanted, found = wanted[:, 1:], found[:, 1:]  # the first position's state is thousands of times larger
    return ((found - wanted) ** 2).mean() / wanted.var()


def main(folder: Path, language: str, name: str, rate: float, thousands: float, seed: int = 1) -> None:
    key = {"language": language, "way": name, "rate": rate, "thousands": thousands, "seed": seed}
    log = folder / "screen.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if any(all(row[part] == value for part, value in key.items()) for row in done):
        return
    configure_cpu()
    torch.manual_seed(seed)
    world, way = World(folder, language), WAYS[name]
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    model = world.model(way)
    tokenizer = world.old if way.old else world.new
    new_blocks = blocks_of(world.ids(world.new), LENGTH)
    old_documents = world.ids(world.old)
    ratio = sum(map(len, old_documents)) / new_blocks.numel()
    old_length = round(LENGTH * ratio)
    blocks = blocks_of(old_documents, old_length) if way.old else new_blocks
    whole = Workload(world.base.config, world.kept + len(world.parts), LENGTH, 1.0, BATCH, 1, world.kept)
    budget = step_flops(WAYS["whole"], whole, world.base.config.num_layers) * thousands * 1000 / (BATCH * LENGTH)
    plan = Plan(world, way, model, budget, old_length)
    whole_scores = thousands == 0 or thousands >= BRIEF
    scores = {text: world.text(f"{language}.{text}") for text in (("help", "manual") if whole_scores else ("manual",))}
    english = world.text("en.manual")
    if way.fitted:
        model.fit(blocks[torch.randperm(len(blocks), generator=generator)[:FIT_BLOCKS]])

    trained, masters = model.trained, None
    if way.full:  # what trains is fp32, beside the weights in bf16
        masters = [nn.Parameter(p.detach().float()) for p in model.adapters]
        trained = [*trained[: len(trained) - len(masters)], *masters]
    # Where all weights train, new rows beside them have a rate of their own.
    rates = [ROWS_RATE if way.full and parameter is model.rows else rate for parameter in trained]
    groups = [{"params": [parameter], "lr": lr} for parameter, lr in zip(trained, rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)
    order, cache, curve = torch.empty(0, dtype=torch.long), dict[int, Tensor](), []
    if way.caches:
        some = torch.randperm(len(blocks), generator=generator)[: plan.steps // PASSES * BATCH]
        blocks = blocks[some]
    started, aside, at = time.process_time(), 0.0, 0
    for step in range(plan.steps):
        if at + BATCH > len(order):
            order, at = torch.randperm(len(blocks), generator=generator), 0
        chosen, at = order[at : at + BATCH], at + BATCH
        tokens, now = blocks[chosen], plan.way_at(step)
        factor = min(1.0, (step + 1) / (WARM_UP * plan.steps)) * (1 - step / plan.steps)
        for group, lr in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = lr * factor
        if now is TEACH:
            loss = teach(model, tokens, world)
        elif way.caches:
            loss = cached_loss(model, tokens, chosen.tolist(), cache)
        else:
            loss = model.loss(tokens, now, draw)
        loss.backward()
        if masters:
            for master, parameter in zip(masters, model.adapters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if masters:
            with torch.no_grad():
                for master, parameter in zip(masters, model.adapters, strict=True):
                    parameter.copy_(master)
        if whole_scores and (step + 1) % max(1, plan.steps // 4) == 0 and step + 1 < plan.steps:
            before = time.process_time()
            curve.append([step + 1, bits_per_byte(model, tokenizer, scores["manual"], 20_000)])
            aside += time.process_time() - before
    seconds = time.process_time() - started - aside
    row = {
        **key,
        "steps": plan.steps,
        "flops": plan.flops,
        "fit_flops": plan.aside,
        "tokens": plan.steps * blocks.shape[1] * BATCH,
        "cpu_seconds": seconds,
        "curve": curve,
        **{text: bits_per_byte(model, tokenizer, documents) for text, documents in scores.items()},
        "english": bits_per_byte(model, tokenizer, english, 0 if whole_scores else 20_000),
        "loss": float(loss.detach()) if plan.steps else None,
        "bytes_per_token": sum(map(len, (t.encode() for t in scores["manual"].texts)))
        / max(1, sum(map(len, tokenizer.encode(scores["manual"].texts)))),
    }
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def cached_loss(model: Model, tokens: Tensor, chosen: list[int], cache: dict[int, Tensor]) -> Tensor:
    missing = [place for place, index in enumerate(chosen) if index not in cache]
    _, of_outputs = model.tables(model.way)
    if missing:
        of_inputs, _ = model.tables(model.way)
        with torch.no_grad():
            states = run(model.body.layers, model.body.embed(F.embedding(tokens[missing], of_inputs), None, None))
            for place, state in zip(missing, model.head(states), strict=True):
                cache[chosen[place]] = state
    hidden = torch.stack([cache[index] for index in chosen])
    return model.cross_entropy(hidden, of_outputs, tokens) / tokens[:, 1:].numel()


if __name__ == "__main__":
    folder, language, name, rate, thousands, *seed = sys.argv[1:]
    main(Path(folder), language, name, float(rate), float(thousands), *map(int, seed))
