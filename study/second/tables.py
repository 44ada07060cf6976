#!/usr/bin/env python3
"""Write the tables of the second study from its runs' losses and scores.

    python study/second/tables.py [FOLDER]

FOLDER (study/second/) has results.json, and takes tables.md and score_against_compute.svg. Of a folder of runs, as
runs/second after `bash study/second/run.sh`, losses and scores of what is finished are gathered first.
"""

import argparse
import functools
import itertools
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import atomic_write, read_json, write_json
from ds_minimodel.report.curves import flops_unit
from ds_minimodel.report.render import EMPTY, Block, Cell, Heading, Table, to_markdown
from study.paired import (
    UnitCurves,
    by_task,
    difference,
    difference_label,
    differences_table,
    interval_cell,
    name_of,
    pairs_of,
    scores_of,
    share,
    speedup,
    speedups_table,
    unit_curves,
)
from study.picture import averages, picture
from study.second.losses import chosen_by, last_losses
from study.tables import of_seed

RESULTS, PAGE, PICTURE = "results.json", "tables.md", "score_against_compute.svg"
KINDS = ("llama", "modernbert", "random", "neighbours")
SYSTEMS = ("bl_base", "bl_small", "minipost", "minijoint")
# By which nine layers have to lead three, and in what.
BITS, NATS = ("held_out/bits_per_byte", 0.05), ("held_out/nats_per_token", 0.10)

Losses = Mapping[str, Mapping[str, Mapping[str, float]]]  # {run: {training: {name: loss}}}


def gather(work: Path) -> None:
    """Write what the finished trainings and runs of a folder have come to to its results.json."""
    losses = {run.name: found for run in sorted(work.iterdir()) if (found := last_losses(run))}
    write_json(work / RESULTS, {"losses": losses, "scores": scores_of(work)})


def variant_of(run: str, system: str) -> str:
    """What the tables call a system of a run; those of the runs main-SEED and small-SEED are the four of the study."""
    name = run.rpartition("-")[0] or run
    return system if name in ("main", "small", "early") else f"{system} ({name})"


# --- the gate


def rates_table(losses: Losses) -> Table:
    """Loss by learning rate, of the short trainings that chose it."""
    tried = []
    for run, trainings in losses.items():
        if found := re.fullmatch(r"((?:tune|rate|lr)[a-z_-]*?)-(\d[\d.e-]*)", run):
            tried.append((found[1], float(found[2]), chosen_by(trainings)))
    rows = [[Cell(name), Cell(f"{rate:g}"), Cell(f"{loss:.3f}")] for name, rate, loss in sorted(tried)]
    return Table("Learning rates: loss on held-out text, nats a token", ["run", "rate", "loss"], rows)


def gate_table(losses: Losses) -> Table:
    """Held-out losses of three and of nine layers, and whether a kind passes."""
    rows = []
    for kind, millions in itertools.product(KINDS, (15, 30)):
        name, least = BITS if kind == "llama" else NATS
        leads = []
        for seed in (1, 2):
            deep, shallow = (
                losses.get(f"gate{millions}-{kind}-{system}-{seed}", {}).get(f"pretrain/{system}", {})
                for system in ("bl_base", "bl_small")
            )
            if deep and shallow:
                leads.append(shallow[name] - deep[name])
                cells = []
                for loss, form in (NATS[0], "{:.3f}"), (BITS[0], "{:.4f}"):
                    both = [one[loss] for one in (shallow, deep) if loss in one]
                    cells += [form.format(x) for x in (*both, both[0] - both[1])] if both else ["–"] * 3
                rows.append([Cell(text) for text in (kind, str(millions), str(seed), *cells)] + [EMPTY])
        if leads and min(leads) < least:
            rows[-1][-1] = Cell("no")
        elif len(leads) == 2:
            rows[-1][-1] = Cell("yes")
    columns = ["kind", "million tokens", "seed", "nats: 3 layers", "9", "lead", "bits a byte: 3", "9", "lead", "passes"]
    return Table("Three and nine layers on held-out English", columns, rows)


# --- the main run


def finals_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Bits a byte of test text with the last packs, by language and pretraining seed; cost of step 2."""
    last: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        last.setdefault((row["system"], row["language"]), {})[row["seed"][0]] = row
    seeds = sorted({seed for found in last.values() for seed in found})
    unit = flops_unit(max(row["eflops"] for found in last.values() for row in found.values()))
    table_rows = []
    for (system, language), found in last.items():
        bits = {seed: row["bits_per_byte"] for seed, row in found.items()}
        cells = [f"{bits[seed]:.4f}" if seed in bits else "–" for seed in seeds]
        mean = f"{statistics.fmean(bits.values()):.4f}"
        cost = unit.text(statistics.fmean(row["eflops"] for row in found.values()))
        table_rows.append([Cell(text) for text in (name_of(system), language, cost, *cells, mean)])
    columns = ["System", "language", f"step 2, {unit.name}", *(f"seed {seed}" for seed in seeds), "mean"]
    return Table("Bits a byte of test text, the whole body with the pack", columns, table_rows)


CLAIMS = [
    ("H1", share, "minijoint", "bl_base", 0.95),
    ("H2", difference, "minijoint", "bl_small", 0.0),
    ("H3", share, "minipost", "bl_base", 0.95),
    ("H4", speedup, "minijoint", "bl_base", 2.0),
    ("H4", speedup, "minipost", "bl_base", 1.4),
]


def verdicts_table(curves: UnitCurves) -> Table:
    """The hypotheses of registration.md with their numbers, of all pretraining seeds and of each."""
    seeds = sorted({seed for units in curves["bl_base"].values() for seed, _ in units})
    rows = []
    for hypothesis, number, one, other, bound in CLAIMS:
        found = number(pairs_of(curves, one, other))
        if found:
            verdict = "confirmed" if found.low >= bound else "refuted" if found.high < bound else "open"
            if seeds != [1, 2, 3]:
                verdict = "not all seeds yet"
            form = "{:+.2f}" if number is difference else "{:.3f}"
            what = difference_label(one, other) if number is difference else f"{number.__name__} of {name_of(one)}"
            by_seed = [number(pairs_of(of_seed(curves, seed), one, other)) for seed in seeds]
            alone = [Cell(form.format(of_one.value)) if of_one else EMPTY for of_one in by_seed]
            rows.append([Cell(hypothesis), Cell(what), Cell(f"≥ {bound:g}"), interval_cell(found, form), Cell(verdict)])
            rows[-1] += alone
    return Table("Hypotheses", ["", "what", "claim", "found", "verdict", *(f"seed {seed}" for seed in seeds)], rows)


# --- whose fault it was

# Whole bodies with the pack, as (run, system, language), and what each is compared with: (a) of registration.md,
# (e), (b) and (g).
BODY_OR_PLUG = [
    (("whole-1", "multijoint", "de"), ("main-1", "bl_base", "de")),
    (("main-1", "minijoint", "de"), ("whole-1", "multijoint", "de")),
    (("finish-1", "multijoint", "de"), ("whole-1", "multijoint", "de")),
    (("finish-1", "multijoint", "de"), ("main-1", "minijoint", "de")),
    (("finish-1", "multijoint", "ru"), ("main-1", "minijoint", "ru")),
    (("english-1", "multijoint", "en-again"), ("main-1", "minijoint", "en")),
    (("english_whole-1", "multijoint", "en-again"), ("main-1", "minijoint", "en")),
    (("english-1", "multijoint", "en-again"), ("english_whole-1", "multijoint", "en-again")),
]


def fault_table(rows: Sequence[Mapping[str, Any]], losses: Losses) -> Table:
    """What MiniJoint's body keeps over all of its layers, its plug of a language and of English, and its own head."""
    last = {
        (row["run"], row["system"], row["language"]): row["bits_per_byte"]
        for row in sorted(rows, key=lambda row: row["step"])
        if "bits_per_byte" in row
    }
    compared = [(one, other, last.get(one), last.get(other)) for one, other in BODY_OR_PLUG]
    joint = losses.get("main-1", {}).get("pretrain/minijoint", {})
    small = losses.get("small-1", {}).get("pretrain/bl_small", {})
    heads = (("main-1", "minijoint", "en, head of 3 layers"), ("small-1", "bl_small", "en"))
    compared.append((*heads, joint.get(f"{BITS[0]}/depth_3"), small.get(BITS[0])))
    table_rows = [
        [Cell(", ".join(one)), Cell(", ".join(other)), *(Cell(f"{x:.4f}") for x in (a, b)), Cell(f"{b / a:.3f}")]
        for one, other, a, b in compared
        if a and b
    ]
    notes = ["The last line is of held-out text, the others of test text."]
    columns = ["", "against", "bits", "bits", "share"]
    return Table("Bits a byte, and the share of the score", columns, table_rows, notes=notes)


def plug_table(losses: Losses) -> Table:
    """Held-out loss of a new language over what it was trained with, and over the whole body; means over the seeds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run, trainings in losses.items():
        if run.rpartition("-")[0] in ("main", "small"):
            for training, last in trainings.items():
                if training.startswith("adapt/"):
                    both = last[BITS[0]], last["held_out/body_bits_per_byte"]
                    found.setdefault(training.removeprefix("adapt/"), []).append(both)
    rows = []
    for training in sorted(found):
        system, _, language = training.partition("/")
        own, whole = (statistics.fmean(values) for values in zip(*found[training], strict=True))
        if whole != own:
            texts = (name_of(system), language, f"{own:.4f}", f"{whole:.4f}", f"{whole - own:+.4f}")
            rows.append([Cell(text) for text in texts])
    columns = ["System", "language", "over the mini-model", "over the whole body", "the plug"]
    notes = ["Of few samples, whose number depends on a training's cost: rows do not compare with each other."]
    return Table("What the plug costs: bits a byte of held-out text, means over seeds", columns, rows, notes=notes)


def encoders_table(losses: Losses) -> Table:
    """(h) of registration.md: masked losses in English after pretraining, in German with the pack."""
    rows = []
    for body, system in ("bl_base", "bl_base"), ("bl_small", "bl_small"), ("bl_base", "minijoint"):
        trainings = losses.get(f"modern_{body}-1", {})
        english, german = (trainings.get(f"{step}/{system}{of}") for step, of in (("pretrain", ""), ("adapt", "/de")))
        if english and german:
            found = english[NATS[0]], german["held_out/body_nats_per_token"], german[NATS[0]]
            rows.append([Cell(name_of(system)), *(Cell(f"{loss:.3f}") for loss in found)])
    columns = ["System", "English", "German, whole body", "over the layers of step 2"]
    return Table("ModernBERT's kind: loss on held-out text, nats a token", columns, rows)


def early_table(losses: Losses) -> Table:
    """Held-out loss at the end of pretrainings that were stopped early."""
    bodies = [
        (run.partition("-"), name_of(training.removeprefix("pretrain/")), last)
        for run, trainings in losses.items()
        for training, last in trainings.items()
        if run.startswith("early") and training.startswith("pretrain/")
    ]
    rows = []
    for (name, _, steps), system, last in bodies:
        found = (last.get(key) for key in (f"{NATS[0]}/depth_3", NATS[0]))
        rows.append([Cell(name), Cell(steps or "–"), Cell(system), *(Cell(f"{x:.3f}" if x else "–") for x in found)])
    columns = ["run", "tried: steps", "System", "at the third layer", "at the last"]
    return Table("Held-out English at the end of pretraining, nats a token", columns, rows)


def stage_blocks(rows: Sequence[Mapping[str, Any]], losses: Losses) -> list[Block]:
    """The first study's tasks over bodies that were stopped early."""
    curves = unit_curves(rows)
    with_base = [(one, "bl_base") for one in sorted(curves) if one != "bl_base"]
    with_small = [(one, "bl_small") for one, _ in with_base if one != "bl_small"]
    return [
        early_table(losses),
        differences_table("Differences in final score", by_task(curves, with_base + with_small)),
        speedups_table(by_task(curves, with_base, speedup), curves),
    ]


def rows_of(results: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The score rows in bits of whole bodies with packs, and those of tasks; each system called as its variant."""
    rows = [
        {**row, "system": variant_of(row["run"], row["system"]), "seed": tuple(row["seed"])}
        for row in results["scores"]
    ]
    return [row for row in rows if "bits_per_byte" in row], [row for row in rows if "bits_per_byte" not in row]


def is_of_main_run(row: Mapping[str, Any]) -> bool:
    return row["system"] in SYSTEMS and row["language"] != "en"


def blocks(results: Mapping[str, Any]) -> list[Block]:
    """All tables in reading order, of what there is."""
    losses = results["losses"]
    found: list[Block] = [Heading("The gate"), gate_table(losses), rates_table(losses)]
    rows, of_tasks = rows_of(results)
    targets = [row for row in rows if is_of_main_run(row)]
    if targets:
        curves = unit_curves(targets)
        with_base = [(system, "bl_base") for system in SYSTEMS[1:]]
        to_99 = by_task(curves, with_base, functools.partial(speedup, part=0.99))
        found += [
            Heading("The main run"),
            verdicts_table(curves),
            finals_table(targets),
            speedups_table(by_task(curves, with_base, speedup), curves),
            Table(
                "Speedup over BL_BASE to 99 % of its final score",
                ["System", "speedup"],
                [[Cell(name_of(one)), interval_cell(numbers["all tasks"])] for (one, _), numbers in to_99.items()],
            ),
            Heading("English, and what MiniJoint's body does"),
            finals_table([row for row in rows if not is_of_main_run(row)]),
            fault_table(results["scores"], losses),
            plug_table(losses),
            encoders_table(losses),
        ]
    if tasks := [row for row in of_tasks if row["language"] != "en"]:
        found += [Heading("The first study's body, stopped early"), *stage_blocks(tasks, losses)]
    return found


def write(folder: Path) -> None:
    """Write the tables of a folder, and the picture where all systems have scores."""
    if any(folder.glob("*/pretrain")):
        gather(folder)
    if not (folder / RESULTS).is_file():
        raise UserError(f"{folder / RESULTS}: no such file, and no run beside it; make one: bash study/second/run.sh")
    results: Any = read_json(folder / RESULTS)
    written = {PAGE: to_markdown("Tables of the second study", blocks(results))}
    curves = unit_curves(filter(is_of_main_run, rows_of(results)[0]))
    if all(system in curves for system in SYSTEMS):
        written[PICTURE] = picture(*averages(curves, SYSTEMS), "bytes of test text in 100 bits, mean over languages")
    for name, text in written.items():
        with atomic_write(folder / name, "w") as file:
            file.write(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "study/second", metavar="FOLDER")
    options = parser.parse_args()
    return exit_code(lambda: write(options.folder))


if __name__ == "__main__":
    sys.exit(main())
