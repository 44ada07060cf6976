"""Comparison of several runs: which system is the same one in several runs, and which only bears the same name.

A *variant* is a system with all the settings that decide its results but the seed. Runs that agree in them
are averaged; the first variant of a system is called as the system is, one that differs from it in the
mini-model's depth alone "SYSTEM N=2", any other one by the run that it comes from, "SYSTEM (wide)".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.recipe.schema import compared_settings
from ds_minimodel.results.curves import Row
from ds_minimodel.results.losses import DevelopmentRow, LossRow
from ds_minimodel.results.run_results import RunResults
from ds_minimodel.results.units import in_order, name_of, system_of
from ds_minimodel.systems import BASELINE, SYSTEMS, Depth

DEPTH = Depth.MINI.value
_MOST_DIFFERENCES = 4  # named for a run


@dataclass
class Variant:
    """System with all the settings that decide its results but the seed."""

    name: str
    system: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Data of a report page; the `system` of all rows is the name of a variant.

    facts: {label: text}. scores, source_scores: rows of curves.py in the target languages and in the source
    language; their seed is a pair, (seed of the run, finetuning seed). metrics: {task: what its scores are}.
    not_finetuned: tasks that are scored with the bodies as they are. depths: {system: {depth: variant}} of systems with
    several depths of the mini-model.
    baseline_of: {variant: the BL_BASE that it is measured against}. pairs: (one, other) to be compared unit by unit.
    is_joint: whether other runs than the first have scores that it has not. examples: those of RunResults, of one run.
    """

    source: str
    facts: dict[str, str]
    scores: list[Row]
    source_scores: list[Row]
    costs: list[Row]
    baselines: list[Row]
    losses: list[Row]
    metrics: dict[str, str]
    not_finetuned: set[str]
    depths: dict[str, dict[int, str]]
    baseline_of: dict[str, str]
    pairs: list[tuple[str, str]]
    is_joint: bool
    examples: Sequence[Row] = ()
    development: Sequence[Row] = ()


def compare_runs(runs: list[RunResults]) -> Comparison:
    """Comparison of `runs`; UserError where their scores cannot be compared."""
    _check_comparable(runs)
    variants, of_run = _variants(runs)
    depths = _depths(variants)
    score_keys = ("task", "language", "seed", "step")
    in_targets, repeated = _unique(runs, of_run, lambda run: run.target_scores, score_keys)
    in_source, _ = _unique(runs, of_run, lambda run: run.source_scores, score_keys)
    costs, _ = _unique(runs, of_run, lambda run: run.costs, ("step",), by_seed=False)
    losses, _ = _unique(runs, of_run, lambda run: run.losses, ("stage", "language"))
    development, _ = _unique(runs, of_run, lambda run: run.development, ("task", "seed"))
    baselines = {
        (row["baseline"], row["task"], row["language"]): row for run in reversed(runs) for row in run.baselines
    }  # the first run's count
    metrics = {task: test["metric"] for run in runs for task, test in run.tests.items()}
    baseline_of = _baseline_of(variants, of_run)
    return Comparison(
        runs[0].source,
        _facts(runs, repeated),
        in_targets,
        in_source,
        costs,
        list(baselines.values()),
        losses,
        metrics,
        {task for run in runs for task, test in run.tests.items() if not test.get("is_finetuned", True)},
        depths,
        baseline_of,
        _pairs(variants, of_run, depths, baseline_of),
        len(in_targets) > len(runs[0].target_scores),
        runs[0].examples if len(runs) == 1 else (),
        development,
    )


def _check_comparable(runs: list[RunResults]) -> None:
    """Raise UserError where two runs have one name, another source language or other tests of one task."""
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two runs are called {name}; name one of them: --with LABEL=RUN")
    for number, run in enumerate(runs):
        for earlier in runs[:number]:
            difference = _incomparable(earlier, run)
            if difference:
                raise UserError(f"{run.name} cannot be compared with {earlier.name}: {difference}; report them apart")


def _incomparable(one: RunResults, other: RunResults) -> str | None:
    """Why two runs do not compare, None where they do."""
    if one.source != other.source:
        return f"their source languages are {other.source} and {one.source}"
    for task in one.tests.keys() & other.tests.keys():
        first, second = one.tests[task], other.tests[task]
        if first["metric"] != second["metric"]:
            return f"the scores of task {task} are {second['metric']} and {first['metric']}"
        for language in sorted(first["files"].keys() & second["files"].keys()):
            if first["files"][language] != second["files"][language]:
                return f"task {task} has other test data for {language}"
    return None


def settings_of(run: RunResults, system: str) -> dict[str, Any]:
    """{key: value} of all that decides the results of `system` in `run`, its seed aside."""
    settings = compared_settings(run.recipe)
    ignored = SYSTEMS[system].keys_not_read(bool(settings["adapt.depth_schedule"]))
    ignored |= {"pretrain"} if run.data["base"] else set()
    return run.data | {key: value for key, value in settings.items() if not _is_below(key, ignored)}


def _is_below(key: str, parts: set[str]) -> bool:
    """Whether a dotted key is one of `parts`, or lies in one."""
    return any(key == part or key.startswith(f"{part}.") for part in parts)


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Keys that both have with different values; what only one has (a language, a task) is no difference."""
    return [key for key in one if key in other and one[key] != other[key]]


def _variants(runs: list[RunResults]) -> tuple[list[Variant], dict[tuple[str, str], str]]:
    """All variants, and {(run name, system): variant name}."""
    variants: list[Variant] = []
    of_run: dict[tuple[str, str], str] = {}
    for run in runs:
        for system in run.recipe["systems"]:
            settings = settings_of(run, system)
            of_system = [variant for variant in variants if variant.system == system]
            variant = next((one for one in of_system if not _differences(one.settings, settings)), None)
            if variant is None:
                variant = Variant(_name(system, settings, of_system, run), system, settings)
                variants.append(variant)
            variant.settings |= settings
            of_run[run.name, system] = variant.name
    return variants, of_run


def _name(system: str, settings: Mapping[str, object], of_system: list[Variant], run: RunResults) -> str:
    if not of_system:
        return system
    if _differences(of_system[0].settings, settings) == [DEPTH]:
        return f"{system} N={settings[DEPTH]}"
    return f"{system} ({run.name})"


def _depths(variants: list[Variant]) -> dict[str, dict[int, str]]:
    """Return {system: {depth: variant name}} of the systems with several depths of the mini-model."""
    depths: dict[str, dict[Any, str]] = {}
    for variant in variants:
        depth = variant.settings.get(DEPTH)
        if variant.name in (variant.system, f"{variant.system} N={depth}"):
            depths.setdefault(variant.system, {})[depth] = variant.name
    return {system: dict(sorted(names.items())) for system, names in depths.items() if len(names) > 1}


def _baseline_of(variants: list[Variant], of_run: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """{variant: the BL_BASE of the first run that has both, else the first BL_BASE}; {} without any BL_BASE."""
    found: dict[str, str] = {}
    for (run, _), variant in of_run.items():
        if (run, BASELINE) in of_run:
            found.setdefault(variant, of_run[run, BASELINE])
    rest = [variant.name for variant in variants if found and variant.name not in found]
    return found | dict.fromkeys(rest, BASELINE)


def _pairs(
    variants: list[Variant],
    of_run: Mapping[tuple[str, str], str],
    depths: Mapping[str, Mapping[int, str]],
    baseline_of: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Pairs to compare: systems of one run, each with its BL_BASE; neighbouring depths; another variant with the first.

    The later one in the paper's order comes first: it is the one of which is asked what it gains or loses.
    """
    names = [variant.name for variant in variants]
    in_run: dict[str, list[str]] = {}
    for (run, _), variant in of_run.items():
        in_run.setdefault(run, []).append(variant)
    pairs = [(one, baseline_of[one]) for one in in_order(names) if one in baseline_of]
    for of_one_run in in_run.values():
        ordered = in_order(of_one_run)
        pairs += [(one, other) for number, one in enumerate(ordered) for other in ordered[:number]]
    for by_depth in depths.values():
        ordered = list(by_depth.values())
        pairs += list(zip(ordered[1:], ordered, strict=False))
    others = {name for by_depth in depths.values() for name in by_depth.values()}
    pairs += [(name, system_of(name)) for name in names if name not in others]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def _unique(
    runs: list[RunResults],
    of_run: Mapping[tuple[str, str], str],
    rows_of: Callable[[RunResults], Iterable[Row | LossRow | DevelopmentRow]],
    keys: tuple[str, ...],
    by_seed: bool = True,
) -> tuple[list[Row], dict[str, dict[str, None]]]:
    """Rows of all runs with the names of variants, each seed's once, and {run: its systems seen before}.

    Runs with the same settings and seed give the same rows: a later run's are repetitions.
    """
    found: dict[tuple, dict[str, Any]] = {}
    repeated: dict[str, dict[str, None]] = {}
    for run in runs:
        for row in map(dict, rows_of(run)):
            variant = of_run[run.name, row["system"]]
            seeds = (run.recipe["seed"],) if by_seed else ()
            key = (variant, *seeds, *(row[name] for name in keys))
            if key in found:
                repeated.setdefault(run.name, {})[variant] = None
                continue
            found[key] = row | {"system": variant}
            if "seed" in row:
                found[key]["seed"] = (run.recipe["seed"], row["seed"])
    return list(found.values()), repeated


def _facts(runs: list[RunResults], repeated: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return {label: text} at the head of the page: the first run's facts, and a line for each of several runs."""
    if len(runs) == 1:
        return runs[0].facts
    facts = {f"{label} (first run)": text for label, text in runs[0].facts.items()}
    return facts | {run.name: _summary(run, runs[0], repeated.get(run.name, ())) for run in runs}


def _summary(run: RunResults, first: RunResults, repeated: Iterable[str]) -> str:
    """Line about a run: its seed, systems and languages, and in what it differs from the first one."""
    recipe = run.recipe
    parts = [
        f"seed {recipe['seed']}",
        ", ".join(map(name_of, recipe["systems"])),
        f"{recipe['languages']['source']} to {', '.join(recipe['languages']['targets'])}",
    ]
    its, mine = _all_settings(first), _all_settings(run)
    differences = [key if key in run.data else f"{key} {its[key]} → {mine[key]}" for key in _differences(its, mine)]
    if len(differences) > _MOST_DIFFERENCES:
        differences[_MOST_DIFFERENCES:] = [f"{len(differences) - _MOST_DIFFERENCES} more"]
    if differences:
        parts.append(f"differs in {', '.join(differences)}")
    if repeated:
        parts.append(
            f"repeats {', '.join(map(name_of, repeated))} of an earlier run with the same settings "
            "and seed: counted once"
        )
    return "; ".join(parts)


def _all_settings(run: RunResults) -> dict[str, Any]:
    return {key: value for system in run.recipe["systems"] for key, value in settings_of(run, system).items()}
