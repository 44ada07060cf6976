"""A decoder in another language: a pack beside LoRA and training of all weights, for the same compute."""

import argparse
import importlib.util
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.record import table
from ds_minimodel.api import Recipe, UserError, load_body, load_pack, load_recipe, plugged_module, run_recipe
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.data.reader import read_documents
from ds_minimodel.hf.convert import export_hf
from ds_minimodel.models.flops import EFLOP, output_flops, step_flops
from ds_minimodel.models.trainable import encode
from ds_minimodel.recipe.flops import recipe_costs, step_work
from ds_minimodel.report.render import Table

HELD_OUT = 40  # every so-many-th document is scored, and trains nothing
RANK = 8  # of LoRA's products
FITTED_ON = 100  # sequences that a map of the output is fitted on
MODEL = {"kind": "llama", "num_layers": 6, "hidden_size": 96, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 256}
TRAINING = {"batch_size": 16, "seq_length": 128, "lr": 3e-3, "clip": 1.0}
WAYS = ("all weights", "LoRA", "LoRA and embeddings")  # by transformers

PAGE = f"""A decoder in another language, for the same compute
A body of {MODEL["num_layers"]} layers of width {MODEL["hidden_size"]} learns English, and is taken to German in several
ways at one peak rate, {TRAINING["lr"]} where the command says no other. Bits a byte are of held-out documents (every
{HELD_OUT}th), in parts of {TRAINING["seq_length"]} tokens, by transformers' `LlamaForCausalLM` of what `export-hf`
writes; English is asked afterwards, for which packs leave the body and its own pack as they were. LoRA (rank {RANK}, on
all products of the layers) and all weights keep the English vocabulary, packs bring a German one of the same size.
Trained weights are those that are kept for German, so without the layer of step 1b.

FLOPs are by the paper's formulas (`ds_minimodel/models/flops.py`). MiniPost's are those of its steps 1b and 2. A step
of all weights costs what one of step 1 does; with LoRA what one of step 2 through all layers does, without the gradient
of the output's weights where these are frozen, and three times LoRA's own products.

Untied: the output matrix is not the embeddings, and a pack holds both. Mapped: the pack's output matrix, which was
trained on the mini-model's last states, times the least-squares map of the body's last states to those, fitted on
{FITTED_ON} sequences of the text that was trained on, English or German; nothing else is trained.

What this does not show: a body that knows English. This one read 2 MB of it about once, and its 2,000 pieces cut German
into 1.8 bytes a token, where its own take 3.3; so ways that keep them read a third of the text for the same FLOPs, and
the body has hardly met the pieces that German is made of. A published decoder with a vocabulary of many languages may
lose less by keeping it. The German text is the English one's translation (LibreOffice's help), and held-out documents
may resemble others. LoRA's adapters may be taken out again for English; its figure is with them."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=Path, default=Path("data/sample/text"), help="folder; default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--workdir", type=Path, help="kept, and gone on with; default: a temporary folder")


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each body and way."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError("transformers is not installed; pip install 'ds_minimodel[benchmark,hf]'")
    with tempfile.TemporaryDirectory(prefix="decoders-") as temporary:
        workdir = options.workdir or Path(temporary, "workdir")
        workdir.mkdir(parents=True, exist_ok=True)
        texts = {language: split(options.text / f"{language}.txt", workdir) for language in ("en", "de")}
        for seed, tied in itertools.product(options.seeds, (True, False)):
            name = f"{'tied' if tied else 'untied'}-{seed}"
            recipe = recipe_of(workdir, name, seed, tied, options.set)
            for row in rows_of(recipe, workdir / f"{name}.yaml", options.set, Path(temporary, name), texts):
                yield {"output": "tied" if tied else "untied", "seed": seed, **row}


def split(path: Path, workdir: Path) -> tuple[list[str], list[str]]:
    """Documents of a file to train on, which are written into `workdir` too, and held-out ones."""
    documents = ["\n".join(document) for document in read_documents([path])]
    kept = [text for number, text in enumerate(documents) if number % HELD_OUT]
    (workdir / path.name).write_text("\n\n".join(kept) + "\n", encoding="utf-8")
    return kept, documents[::HELD_OUT]


def recipe_of(workdir: Path, name: str, seed: int, tied: bool, overrides: Sequence[str]) -> Recipe:
    """The recipe of a body and its packs, which is written into `workdir`."""
    values = {
        "workdir": str(workdir / name),
        "seed": seed,
        "systems": ["bl_base", "minipost"],
        "languages": {"source": "en", "targets": ["de"]},
        "tokenizer": {"vocab_size": 2000},
        "data": {"text": {name: str(workdir / f"{name}.txt") for name in ("en", "de")}, "held_out": 0},
        "model": {**MODEL, "max_positions": 128, "tie_output": tied},
        "mini": {"depth": 2, "new_layers": 1},
        "pretrain": {**TRAINING, "steps": 340, "warmup_steps": 34},
        "build_mini": {**TRAINING, "steps": 50, "warmup_steps": 5, "initialisation": "last"},
        "adapt": {**TRAINING, "steps": 140, "warmup_steps": 14},
        "engine": {"zero_stage": 0, "precision": "fp32", "micro_batch_size": 16},
    }
    (workdir / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return load_recipe(workdir / f"{name}.yaml", overrides)


def rows_of(
    recipe: Recipe, path: Path, overrides: Sequence[str], exports: Path, texts: dict[str, tuple[list[str], list[str]]]
) -> Iterator[dict[str, Any]]:
    """Run a recipe, of the file `path`, and yield a row for each way from its body to German; exports: a folder."""
    folder, length, steps = run_recipe(recipe), recipe.adapt.seq_length, recipe.adapt.steps
    body, mini = folder / "pretrain/bl_base/body", folder / "build-mini/minipost/mini"
    source, of_mini = folder / "pretrain/bl_base/pack", folder / "adapt/minipost/de/pack"
    costs = {(one["system"], one["step"]): one["formula_eflops"] * EFLOP for one in recipe_costs(recipe)}
    through_all = costs["bl_base", "adapt"]
    budget = costs["minipost", "build-mini"] + costs["minipost", "adapt"]
    size = sum(tensor.numel() for tensor in load_pack(of_mini).tensors.values())

    def exported(pack: Path, name: str) -> Theirs:
        export_hf(body, exports / name, pack)
        return opened(exports / name)

    def row(way: str, theirs: Theirs, trained: int, flops: float, steps: int, **more: float) -> dict[str, Any]:
        scores = {"de": bits_per_byte(theirs, texts["de"][1], length), "en": kept}
        return {"way": way, "trained": trained, "flops": flops, "steps": steps, **scores, **more}

    english = exported(source, "en")
    kept = bits_per_byte(english, texts["en"][1], length)
    yield row("unadapted", english, 0, 0, 0)
    rows = blocks(english.tokenizer, texts["de"][0], length)
    for way in WAYS:
        theirs = opened(exports / "en")
        flops = prepare(way, theirs.model, recipe)
        train(theirs.model, rows, recipe, round(budget / flops))
        trained = sum(one.numel() for one in theirs.model.parameters() if one.requires_grad)
        after = bits_per_byte(theirs, texts["en"][1], length)
        yield row(way, theirs, trained, flops * round(budget / flops), round(budget / flops), en=after)
    yield row("pack, BL_BASE", exported(folder / "adapt/bl_base/de/pack", "whole"), size, through_all, steps)
    fewer = round(steps * budget / through_all)
    again = [f"workdir={folder}-again", f"base={folder}/pretrain/bl_base", "systems=[bl_base]", f"adapt.steps={fewer}"]
    shorter = run_recipe(load_recipe(path, [*overrides, *again])) / "adapt/bl_base/de/pack"
    yield row("pack, BL_BASE", exported(shorter, "fewer"), size, through_all * fewer / steps, fewer)
    pack = exported(of_mini, "mini")
    yield row("pack, MiniPost", pack, size, budget, steps)
    weight = pack.model.lm_head.weight.data
    for language, of, tokenizer in (("en", source, english.tokenizer), ("de", of_mini, pack.tokenizer)):
        if not recipe.body_config.tied:
            tokens = blocks(tokenizer, texts[language][0], length)[:FITTED_ON]
            whole, shallow = (last_states(artifact, of, tokens) for artifact in (body, mini))
            pack.model.lm_head.weight.data = weight @ torch.linalg.lstsq(whole, shallow).solution.T
            yield row(f"pack, MiniPost, mapped on {language}", pack, size, budget, steps)


class Theirs(NamedTuple):
    """A model of transformers."""

    model: Any
    tokenizer: Any


def opened(folder: Path) -> Theirs:
    """What export_hf wrote."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return Theirs(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


class LowRank(nn.Module):
    """A linear layer, and beside it a product of two narrow ones that begins as zero (Hu et al., 2022)."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear, self.down = linear, nn.Linear(linear.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 2 * self.up(self.down(x))


def prepare(way: str, model: Any, recipe: Recipe) -> float:
    """Make a model train as `way` says; FLOPs of a step of it."""
    work, depths = step_work(recipe, recipe.adapt, recipe.tokenizer.vocab_size), [recipe.model.num_layers]
    if way == "all weights":
        return step_flops("pretrain", work, depths).formula
    torch.manual_seed(recipe.seed)
    model.requires_grad_(False)
    for name, module in [*model.model.layers.named_modules()]:
        if isinstance(module, nn.Linear):
            model.model.layers.set_submodule(name, LowRank(module))
    added = sum(one.numel() for one in model.parameters() if one.requires_grad)
    flops = step_flops("adapt", work, depths).formula + 6 * added * work.num_sequences * work.seq_length
    if way == "LoRA":
        return flops - work.num_sequences * output_flops(work)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        part.requires_grad_(True)
    return flops


def train(model: Any, rows: Tensor, recipe: Recipe, steps: int) -> None:
    """Train as the recipe's step 2 does: its batches, Adam, and shares of rising and falling rates."""
    own, draw = recipe.adapt, torch.Generator().manual_seed(recipe.seed)
    trained = [one for one in model.parameters() if one.requires_grad]
    adam = torch.optim.AdamW(trained, own.lr, (own.beta1, own.beta2), own.eps, own.weight_decay)
    rise = max(1, round(steps * own.warmup_steps / own.steps))
    schedule = LambdaLR(adam, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise)))
    epochs = steps * own.batch_size // len(rows) + 1
    order = torch.cat([torch.randperm(len(rows), generator=draw) for _ in range(epochs)])
    for batch in order[: steps * own.batch_size].view(steps, -1):
        model(rows[batch], labels=rows[batch]).loss.backward()
        nn.utils.clip_grad_norm_(trained, own.clip)
        adam.step()
        schedule.step()
        adam.zero_grad()


def blocks(tokenizer: Any, documents: Sequence[str], length: int) -> Tensor:
    """Sequences of `length` tokens; the first of each begins a text, and each document's end has its token."""
    encoded = tokenizer(documents, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([token for own in encoded for token in (*own, tokenizer.eos_token_id)])
    rows = ids[: len(ids) // (length - 1) * (length - 1)].view(-1, length - 1)
    return F.pad(rows, (1, 0), value=tokenizer.bos_token_id)


@torch.no_grad()
def bits_per_byte(theirs: Theirs, documents: Sequence[str], length: int) -> float:
    """Bits a byte of documents, which are cut as the task `text` cuts them (ds_minimodel/tasks/likelihood.py)."""
    parts, nats = [], 0.0
    for own in theirs.tokenizer(documents, add_special_tokens=False)["input_ids"]:
        begin, size = theirs.tokenizer.bos_token_id, length - 1
        parts += [torch.tensor([begin, *own[first : first + size]]) for first in range(0, max(1, len(own)), size)]
    parts.sort(key=len)
    for first in range(0, len(parts), 32):
        ids = pad_sequence(parts[first : first + 32], batch_first=True, padding_value=IGNORED)
        logits = theirs.model(ids.clamp(min=0)).logits[:, :-1]
        nats += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    return nats / math.log(2) / sum(len(text.encode()) for text in documents)


@torch.no_grad()
def last_states(artifact: Path, pack: Path, tokens: Tensor) -> Tensor:
    """What the output matrix is applied to, (P, H)."""
    module = plugged_module(load_body(artifact), load_pack(pack))
    (x_BSH,), _ = encode(module.pack, module.body, {"tokens": tokens})
    (head,) = module.body.heads.values()
    return head(x_BSH.flatten(0, 1))


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    columns = ["output", "seed", "way", "trained weights", "steps", "TFLOP", "German", "English"]
    lines = [
        [row["output"], row["seed"], row["way"], f"{row['trained']:,}", row["steps"]]
        + [f"{row[key] * scale:.3f}" for key, scale in (("flops", 1e-12), ("de", 1), ("en", 1))]
        for row in rows
    ]
    return [table("Bits a byte", columns, lines)]
