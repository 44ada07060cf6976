"""A run of a small recipe with made-up scores, as its report reads them."""

from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.report.curves import RunResults
from ds_minimodel.report.tables import adapt_costs

from ..recipes import recipe_of

TASKS = {"topic": "classification", "qa": "qa"}
FINAL = {"bl_base": 60.0, "bl_small": 50.0, "minijoint": 58.0, "minipost": 59.0}


def score_rows(system, task, language, points, seeds=(1,)):
    """Rows of scores.json: of points (step, eflops, score), equal in all seeds."""
    return [
        {
            "system": system,
            "task": task,
            "language": language,
            "seed": seed,
            "step": step,
            "eflops": eflops,
            "score": score,
        }
        for seed in seeds
        for step, eflops, score in points
    ]


def some_run(systems=("bl_base", "minijoint"), languages=("de", "tr"), tasks=("topic",), **more):
    """A run whose scores rise from 30 at step 0 to FINAL after the last step, in two finetuning
    seeds.

    more: of RunResults.
    """
    recipe = _recipe(list(systems), list(languages), tasks)
    spent = adapt_costs(recipe_costs(recipe))
    held_out = [(0, 2.0), (5, 1.5), (10, 1.6)]
    results = dict(
        recipe=recipe,
        facts={"Model": "4 layers"},
        metrics={task: "F1" if task == "qa" else "accuracy" for task in tasks},
        scores=list(_scores(spent, languages, tasks)),
        losses=[
            dict(
                system=system,
                stage="adapt",
                language=language,
                held_out=held_out,
                hours=0.25,
                memory_gib=2.5,
            )
            for system in systems
            for language in languages
        ],
    )
    return RunResults(**results | more)


def _scores(spent, languages, tasks):
    for system in spent:
        for task in tasks:
            more = {"exact_match": 10.0} if task == "qa" else {}
            rows = score_rows(system, task, "en", points=[(0, 0.0, 80.0)])
            for language in languages:
                for seed in (1, 2):
                    points = [
                        (
                            step,
                            spent[system] * step / 10,
                            29 + seed + (FINAL[system] - 30) * step / 10,
                        )
                        for step in (0, 5, 10)
                    ]
                    rows += score_rows(system, task, language, points=points, seeds=[seed])
            yield from (row | more for row in rows)


def _recipe(systems, languages, tasks):
    files = {language: f"{language}.txt" for language in ("en", *languages)}
    step = {"steps": 10, "batch_size": 8, "seq_length": 32, "warmup_steps": 1}
    tests = dict.fromkeys(languages, "test")
    return recipe_of(
        systems,
        languages,
        "en",
        workdir="runs/some",
        tokenizer={"vocab_size": 1000},
        model={
            "num_layers": 4,
            "hidden_size": 64,
            "num_heads": 4,
            "ffn_size": 256,
            "max_positions": 512,
        },
        mini={"depth": 2, "new_layers": 1},
        pretrain=step,
        build_mini=step,
        adapt=step,
        data={"text": files},
        finetune={
            "seeds": 2,
            "tasks": {
                task: {"kind": TASKS[task], "train": "train", "test": tests} for task in tasks
            },
        },
    )
