"""Part B, item 3: 1,000 new Greek tokens of SmolLM2-135M, from means of pieces and aligned.

    python -m study.fifth.decoder FOLDER SAMPLE BASE [--minutes M] [WORD…]

FOLDER has the pairs (texts.py), SAMPLE is what `ds-minimodel fetch-sample --languages de,el` wrote,
BASE is SmolLM2-135M-Instruct, a GGUF file.
"""

import random
from pathlib import Path

from ds_minimodel.api import bits_per_byte, load_recipe
from ds_minimodel.artifacts.base import refer
from ds_minimodel.common.files import atomic_write
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.training import snapshot_folder
from ds_minimodel.text.reader import read_documents
from study.fifth.cells import Cell, write_pairs
from study.fifth.lines import call, main
from study.fifth.results import Row, learned_of
from study.fifth.untested import untested

RESULTS = Path(__file__).with_name("decoder.jsonl")
RECIPE = Path(__file__).with_name("decoder.yaml")
SOURCE, LANGUAGE = "en", "el"
STEPS = "corpus", "tokenizer", "prepare", "pretrain", "adapt"
INITIALISATIONS = {"aligned": "aligned", "means": "pieces"}
SIZES = 25_000, 5000, 1000
TEST_BYTES = 60_000


def declared() -> list[Cell]:
    cells = [Cell(LANGUAGE, "text", 0, arm="untouched")]
    for pairs in SIZES:
        cells += [Cell(LANGUAGE, pairs=pairs, arm=arm) for arm in INITIALISATIONS]
    for seed in (2, 3):
        cells += [Cell(LANGUAGE, draw=seed, arm=arm, seed=seed) for arm in INITIALISATIONS]
    return cells


def run(cell: Cell, end: float, folder: Path, sample: Path, base: Path) -> Row:
    decoder = folder / "decoder"
    tests = {
        language: write_test(sample / f"test/{language}.txt", decoder / f"{language}.txt")
        for language in (SOURCE, LANGUAGE)
    }
    model = decoder / "base"
    if not model.exists():
        refer(base, model, SOURCE)
    if cell.arm == "untouched":
        return {"bits": bits_of(model, {"0": model}, tests)}
    lines = (line for path in tests.values() for line in path.read_text("utf-8").splitlines())
    texts = untested(folder / LANGUAGE, filter(None, lines), decoder / "pairs")
    out = decoder / cell.name
    out.mkdir(parents=True, exist_ok=True)
    pairs = ", ".join(map(str, write_pairs(cell, texts, out)))
    trained_on = (f"{code}: {sample / f'text/{code}.txt'}" for code in tests)
    chosen = [
        f"workdir={out / 'run'}",
        f"seed={cell.seed}",
        f"base={base}",
        f"data.text={{{', '.join(trained_on)}}}",
        f"data.pairs={{{LANGUAGE}: [{pairs}]}}",
        f"adapt.initialisation={INITIALISATIONS[cell.arm]}",
    ]
    for step in STEPS:
        call(end, step, RECIPE, *chosen)
    recipe = load_recipe(RECIPE, chosen)
    layout = WorkdirLayout(recipe.workdir)
    (system,) = recipe.chosen_systems
    adapted = layout.adapt(system, LANGUAGE)
    packs = {"0": snapshot_folder(adapted, 0), str(recipe.adapt.steps): adapted / "pack"}
    return {"learned": learned_of(layout, LANGUAGE), "bits": bits_of(model, packs, tests)}


def bits_of(model: Path, packs: dict[str, Path], tests: dict[str, Path]) -> Row:
    """Bits per byte: {language: {steps: bits}}."""
    rows = bits_per_byte(model, packs, [*tests.values()], precision="auto")
    return {
        language: {row.pack: row.bits_per_byte for row in rows if row.text == str(path)}
        for language, path in tests.items()
    }


def write_test(text: Path, out: Path) -> Path:
    """Write some 60 KB of whole documents, drawn from a file of them; return their file."""
    documents = ["\n".join(lines) + "\n" for lines in read_documents([text])]
    drawn: list[str] = []
    for document in random.Random(1).sample(documents, len(documents)):
        if sum(map(len, map(str.encode, drawn))) < TEST_BYTES:
            drawn.append(document)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out, "w") as file:
        file.write("\n".join(drawn))
    return out


if __name__ == "__main__":
    main(RESULTS, declared(), run, "folder", "sample", "base")
