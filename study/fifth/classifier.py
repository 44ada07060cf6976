"""Part B, item 1: a classifier of English topics learns German and Greek by alignment alone.

    python -m study.fifth.classifier FOLDER SAMPLE BASE [--minutes M] [WORD…]

FOLDER has the pairs (texts.py), SAMPLE is what `ds-minimodel fetch-sample --languages de,el` wrote,
BASE is all-MiniLM-L6-v2. A cell of English finetunes the model that those of its seed extend.
"""

from pathlib import Path

from ds_minimodel.api import load_recipe
from ds_minimodel.common.files import read_json
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.report.curves import OF_SOURCE, SCORES_FILE
from study.fifth.cells import SEEN, Cell, write_pairs
from study.fifth.lines import call, main, rows_of
from study.fifth.results import Row, learned_of
from study.fifth.untested import topic_tests, untested

RESULTS = Path(__file__).with_name("classifier.jsonl")
SIZES = 1000, 5000


def finetuned(seed: int) -> Cell:
    """The cell that makes the English classifier of a seed."""
    return Cell("en", "topic", 0, draw=seed, arm="finetuned", seed=seed)


def declared() -> list[Cell]:
    cells = []
    for seed in (1, 2, 3):
        cells.append(finetuned(seed))
        for language in SEEN:
            cells += [Cell(language, pairs=pairs, draw=seed, seed=seed) for pairs in SIZES]
            cells.append(Cell(language, "dictionary", 0, draw=seed, seed=seed))
    return cells


def run(cell: Cell, end: float, folder: Path, sample: Path, base: Path) -> Row:
    # It brings transformers, which tables need not.
    from study.fifth.english import accuracy, finetune

    model = folder / "classifier" / finetuned(cell.seed).name
    tasks = sample / "tasks/topic"
    if cell == finetuned(cell.seed):
        finetune(base, tasks / "train.en.jsonl", model, cell.seed)
        return {"english": accuracy(model, tasks)}
    if finetuned(cell.seed).name not in rows_of(RESULTS):
        raise KeyError(f"there is no English classifier of seed {cell.seed} yet")
    language = cell.language
    out = folder / "classifier" / cell.name
    out.mkdir(parents=True, exist_ok=True)
    texts = folder / "classifier" / f"pairs-{language}"
    untested(folder / language, topic_tests(sample, language), texts)
    command = ["extend", model, "--language", language, "--tokens", 0, "--out", out / "extended"]
    command += ["--pairs", *write_pairs(cell, texts, out)]
    call(end, *command, "--test-task", tasks / f"test.{language}.jsonl")
    recipe = load_recipe(out / "extended/recipe.yaml")
    layout = WorkdirLayout(recipe.workdir)
    (system,) = recipe.chosen_systems
    (task,) = (
        name for name, task in recipe.finetune.tasks.items() if task.kind == "finished-classifier"
    )
    scores = read_json(layout.evaluate(system, language, task, recipe.seed) / SCORES_FILE)[-1]
    return {
        "learned": learned_of(layout, language),
        "new_tokens": recipe.tokenizer.vocab_size,
        "untouched": scores[f"{OF_SOURCE}score"],
        "aligned": scores["score"],
        "english": accuracy(out / "extended/model", tasks),
    }


if __name__ == "__main__":
    main(RESULTS, declared(), run, "folder", "sample", "base")
