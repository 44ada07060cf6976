"""`ds-minimodel run` and a command for each step, here, on several ranks or under a launcher."""

import argparse
import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.launch.hosts import check_ranks, ranks_on_hosts, restart_with_cpu_settings
from ds_minimodel.pipeline.registry import STEPS, RunsOn, Step
from ds_minimodel.pipeline.run import Ranks, check_alone, do_step, steps_to_run

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe

Commands = Any  # what argparse's add_subparsers gives, which it keeps private
Options = argparse.Namespace


def add_arguments(commands: Commands) -> None:
    """Add `run` and a command for each step to argparse's `commands`."""
    run = add_recipe_command(
        commands, "run", "run all steps of a recipe; safe to interrupt and repeat", _run
    )
    _add_rebuild(run)
    _add_rank_options(run)
    for step in STEPS.values():
        command = add_recipe_command(commands, step.name, step.help, _run_step)
        command.set_defaults(step=step)
        _add_rebuild(command)
        if step.runs_on is RunsOn.RANKS:
            _add_rank_options(command)


def add_recipe_command(
    commands: Commands, name: str, text: str, run: Callable[[Options], int | None], more: str = ""
) -> argparse.ArgumentParser:
    """Add a command that takes a recipe and overrides.

    Args:
        commands: Of argparse.
        name: Of the command.
        text: Help.
        run: Does the command.
        more: Says what RECIPE may be other than a recipe.
    """
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument(
        "recipe",
        metavar="RECIPE",
        help=f"YAML file{more}, or a name that `ds-minimodel recipes` lists",
    )
    command.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="replace a value, e.g. adapt.lr=1e-3",
    )
    command.set_defaults(run=run)
    return command


def _add_rebuild(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rebuild",
        action="store_true",
        help="rename what was made from another recipe, and make it again",
    )


def _add_rank_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ranks", type=number_of_ranks, metavar="N", help="ranks to start here, or on each host"
    )
    command.add_argument(
        "--hostfile",
        metavar="FILE",
        help="file of hosts for `deepspeed`, which starts a rank in each slot",
    )
    command.add_argument(
        "--deepspeed_args",
        metavar="ARGS",
        type=shlex.split,
        default=[],
        help="options for `deepspeed`: '--ssh_port 2222 …'",
    )
    add_engine_options(command)


def add_engine_options(command: argparse.ArgumentParser) -> None:
    """Add options for keys of the recipe's section `engine`, by DeepSpeed's names for them."""
    command.add_argument(
        "--zero", type=int, metavar="S", choices=range(4), help="ZeRO stage (engine.zero_stage)"
    )
    command.add_argument(
        "--deepspeed_config", metavar="FILE", help="a DeepSpeed JSON (engine.deepspeed)"
    )


def number_of_ranks(text: str) -> int:
    """Return a count of ranks, as argparse's `type` does."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks")
    return int(text)


def recipe_of(options: Options) -> "tuple[Recipe, list[str]]":
    """Return (recipe, overrides) of a recipe command's options."""
    from ds_minimodel.config.reading import load_recipe

    overrides = overrides_of(options)
    return load_recipe(options.recipe, overrides), overrides


def overrides_of(options: Options) -> list[str]:
    """Return a recipe command's overrides, --zero and --deepspeed_config among them."""
    overrides = list(options.overrides)
    if getattr(options, "zero", None) is not None:
        overrides.append(f"engine.zero_stage={options.zero}")
    if getattr(options, "deepspeed_config", None) is not None:
        overrides.append(f"engine.deepspeed={json.dumps(options.deepspeed_config)}")
    return overrides


def _run(options: Options) -> int:
    check_alone()
    recipe, overrides = recipe_of(options)
    ranks = options.ranks or 1
    if options.hostfile:
        ranks = ranks_on_hosts(options.hostfile, options.ranks, options.deepspeed_args)
    else:
        check_ranks(ranks)
        restart_with_cpu_settings()
    for step in steps_to_run(recipe, ranks, rebuild=options.rebuild):
        code = _do(step, recipe, overrides, options)
        if code:
            return code
    return 0


def _run_step(options: Options) -> int:
    recipe, overrides = recipe_of(options)
    # The hosts of a hostfile may have GPUs.
    if options.step.runs_on is RunsOn.RANKS and not options.hostfile:
        restart_with_cpu_settings()
    return _do(options.step, recipe, overrides, options)


def _do(step: Step, recipe: "Recipe", overrides: list[str], options: Options) -> int:
    ranks = Ranks()
    # The command of a step that runs on no ranks has no such options.
    if "hostfile" in options:
        if options.deepspeed_args and not options.hostfile:
            raise UserError("--deepspeed_args: they need --hostfile, whose launcher takes them")
        ranks = Ranks(options.ranks, options.hostfile, options.deepspeed_args)
    return do_step(step, recipe, options.recipe, overrides, ranks=ranks, rebuild=options.rebuild)
