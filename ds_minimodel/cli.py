"""The front door. Nothing heavy is imported before a command needs it."""

import argparse
import importlib
import json
import logging
import os
import signal
import sys

from ds_minimodel import __version__, mpi
from ds_minimodel.engine.launch import rank_of_environment
from ds_minimodel.errors import Elsewhere, UserError
from ds_minimodel.sample import command as sample
from ds_minimodel.serve import command as serve

STEPS = {
    "tokenizer": "train a SentencePiece vocabulary for each language",
    "prepare": "tokenise the raw text into token stores",
    "pretrain": "step 1: train the bodies with their heads on the source language",
    "build-mini": "step 1b: train MiniPost's new layers",
    "adapt": "step 2: train each target language's embeddings over a frozen mini-model",
    "finetune": "step 3: finetune the bodies on the tasks in the source language",
    "evaluate": "step 4: plug the languages in and score them",
    "report": "write tables, curves and costs as one page",
}
USER_ERROR, FAILURE = 2, 1


def main(arguments=None):
    """Run one command and exit: 0 done, 2 the user's mistake (one line on standard error), 1 anything else."""
    arguments = sys.argv[1:] if arguments is None else arguments
    rank = rank_of_environment()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        options = _parse(arguments)
        sys.exit(options.run(options) or 0)
    except UserError as error:
        print(f"ds-minimodel: {f'rank {rank}: ' if rank else ''}{error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except Elsewhere as error:
        sys.exit(USER_ERROR if error.is_users_mistake else FAILURE)
    except KeyboardInterrupt:
        print("ds-minimodel: interrupted; the same command goes on from what is complete", file=sys.stderr)
        sys.exit(FAILURE)
    except BrokenPipeError:
        os._exit(FAILURE)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")


def _ranks(text):
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks")
    return int(text)


def _parse(arguments):
    parser = _Parser(prog="ds-minimodel", description="Extend a pretrained masked language model "
                                     "to new languages by mini-model adaptation.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)     # the deepspeed launcher adds it
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_recipe_command(commands, "run", "the whole pipeline; safe to interrupt and repeat", _run, ranks=True)
    for step, text in STEPS.items():
        on_ranks = step not in ("tokenizer", "prepare", "report")
        command = _add_recipe_command(commands, step, text, _run_step, ranks=on_ranks)
        command.set_defaults(step=step)
        if step == "report":
            command.add_argument("--with", dest="others", metavar="[LABEL=]RUN", action="append", default=[],
                                 help="workdir of another finished run for one report over all; may be repeated")
            command.set_defaults(run=_report)
    flops = _add_recipe_command(commands, "flops", "cost of every step, by the paper's formulas and as executed",
                                _flops)
    flops.add_argument("--json", action="store_true", help="print JSON")
    plan = _add_recipe_command(commands, "plan", "memory and traffic of every training step, before it is started",
                               _plan)
    plan.add_argument("--zero", type=int, metavar="S", choices=range(4), help="engine.zero_stage")
    plan.add_argument("--world-size", type=_ranks, metavar="W", default=1, help="ranks in all; default: 1")
    plan.add_argument("--ranks-per-node", type=_ranks, metavar="N", help="default: all ranks, up to 8")
    plan.add_argument("--device", metavar="NAME", default="cpu",
                      help="v100-16g, v100-32g, a100-80g, h100-80g or cpu, this machine; default: cpu")
    plan.add_argument("--json", action="store_true", help="print JSON")
    fetch = commands.add_parser("fetch-sample", help="fetch real text and tasks from Debian's packages")
    sample.add_arguments(fetch)
    fetch.set_defaults(run=sample.run)
    for name, text, run in (("import-hf", "read a RoBERTa or XLM-R folder of Hugging Face's", _import_hf),
                            ("import-fairseq", "read a published RoBERTa or XLM-R of fairseq's", _import_fairseq)):
        importing = commands.add_parser(name, help=text)
        importing.add_argument("folder", metavar="DIR", help="weights, configuration and tokenizer files")
        importing.add_argument("out", metavar="OUT", help="folder for body and pack")
        importing.add_argument("--language", metavar="CODE", default="und", help="of the pack; default: undetermined")
        importing.set_defaults(run=run)
    exporting = commands.add_parser("export-hf", help="write a body or task model for Hugging Face's transformers")
    exporting.add_argument("artifact", metavar="ARTIFACT", help="folder of a body, mini-model or task model")
    exporting.add_argument("out", metavar="OUT", help="folder to write")
    exporting.add_argument("--pack", metavar="PACK", help="language pack; default: the folder `pack` beside ARTIFACT")
    exporting.add_argument("--depth", metavar="N", type=int, help="masked-LM head; default: the deepest")
    exporting.set_defaults(run=_export_hf)
    hosts = commands.add_parser("hosts", help="check a hostfile: hosts reached, programs, slots")
    hosts.add_argument("hostfile", metavar="FILE", help="lines of HOST slots=N")
    hosts.set_defaults(run=_hosts)
    serve.add_arguments(commands)
    commands.add_parser("doctor", help="what was found: versions, kernels, devices, launchers").set_defaults(
        run=_doctor)
    options, rest = parser.parse_known_args(arguments)
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    unknown = [text for text in rest if text not in overrides]
    if unknown or (overrides and not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(unknown or overrides)}")
    if overrides:
        options.overrides = [*options.overrides, *overrides]
    return options


def _add_recipe_command(commands, name, text, run, ranks=False):
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("recipe", metavar="RECIPE", help="YAML file, see recipes/")
    command.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help="replace a value, e.g. adapt.lr=1e-3")
    command.add_argument("--local_rank", help=argparse.SUPPRESS)
    command.add_argument("--rebuild", action="store_true",
                         help="move aside what was made from another recipe, and make it again")
    if ranks:
        command.add_argument("--ranks", type=_ranks, metavar="N", help="ranks to start here, or on each host")
        command.add_argument("--hostfile", metavar="FILE", help="hosts to start ranks on; HOST slots=N a line")
        command.add_argument("--zero", type=int, metavar="S", choices=range(4), help="engine.zero_stage")
    command.set_defaults(run=run)
    return command


def _recipe(options):
    from ds_minimodel.config import load_recipe

    overrides = list(options.overrides)
    if getattr(options, "zero", None) is not None:
        overrides.append(f"engine.zero_stage={options.zero}")
    return load_recipe(options.recipe, overrides), overrides


def _run(options):
    from ds_minimodel.engine.hosts import read_hostfile, survey
    from ds_minimodel.engine.launch import check_ranks, launched, restart_with_cpu_settings

    if launched():
        raise UserError("run: start it without a launcher and give --ranks or --hostfile; launchers take single steps")
    recipe, overrides = _recipe(options)
    ranks = options.ranks or 1
    if options.hostfile:
        hosts = read_hostfile(options.hostfile, options.ranks)
        survey(hosts)                   # now, and not after days of tokenising
        ranks = sum(host.slots for host in hosts)
    else:
        check_ranks(ranks)
        restart_with_cpu_settings()
    from ds_minimodel.steps.check import check_ahead

    for step in check_ahead(recipe, STEPS, ranks):
        code = _do_step(step, recipe, overrides, options)
        if code:
            return code
    return 0


def _run_step(options):
    recipe, overrides = _recipe(options)
    return _do_step(options.step, recipe, overrides, options)


def _report(options):
    from ds_minimodel.steps.pipeline import report_several

    code = _run_step(options)
    if options.others and not code:
        report_several(_recipe(options)[0], options.others)
    return code


def _do_step(step, recipe, overrides, options):
    from ds_minimodel.engine.hosts import launch_on_hosts, read_hostfile
    from ds_minimodel.engine.launch import (STOP_NOTE, check_ranks, launch, launched, note_stop,
                                            restart_with_cpu_settings)
    from ds_minimodel.steps import pipeline

    if step not in pipeline.ON_RANKS:
        if mpi.started() and step in pipeline.UNDER_MPIRUN:
            from ds_minimodel.data.ranks import Ranks

            pipeline.run_step(step, recipe, Ranks(mpi.world()), options.rebuild)
            mpi.end()       # not after an error: a process that ends without it makes mpirun end the others
            return 0
        if launched():
            raise UserError(f"{step}: it runs in one process; start it without a launcher")
        pipeline.run_step(step, recipe, rebuild=options.rebuild)
        return 0
    if not options.hostfile:            # those are for the ranks, and their hosts may have GPUs
        restart_with_cpu_settings()
    if options.ranks is not None or options.hostfile:
        if not pipeline.is_pending(step, recipe, options.rebuild):
            return 0
        os.environ[STOP_NOTE] = os.path.abspath(os.path.join(recipe.workdir, f".stopped-{os.getpid()}"))
        arguments = [step, options.recipe, *overrides, *(["--rebuild"] if options.rebuild else [])]
        if options.hostfile:
            return launch_on_hosts(arguments, read_hostfile(options.hostfile, options.ranks))
        check_ranks(options.ranks)
        return launch(arguments, options.ranks)
    from ds_minimodel.engine.signals import Stopped
    from ds_minimodel.engine.world import start

    try:
        pipeline.run_step(step, recipe, start(recipe.engine.tensor_parallel), options.rebuild)
    except Stopped as stopped:
        note_stop()
        print(f"ds-minimodel: {stopped}", file=sys.stderr)
        sys.exit(0 if stopped.signal_number == signal.SIGTERM else FAILURE)
    return 0


def _flops(options):
    from ds_minimodel.analysis.render import to_markdown
    from ds_minimodel.analysis.cost_tables import cost_table
    from ds_minimodel.steps.costs import costs

    rows = costs(_recipe(options)[0])
    print(json.dumps({"rows": rows}, indent=1) if options.json else to_markdown("Costs", [cost_table(rows)]))


def _plan(options):
    from ds_minimodel.analysis.render import to_markdown
    from ds_minimodel.steps.plan import plans, tables

    rows = plans(_recipe(options)[0], options.world_size, options.device, options.ranks_per_node)
    print(json.dumps({"rows": rows}, indent=1) if options.json else to_markdown("Plan", tables(rows)))


def _import_hf(options):
    _interop("hugging_face").import_hf(options.folder, options.out, options.language)


def _import_fairseq(options):
    _interop("fairseq").import_fairseq(options.folder, options.out, options.language)


def _export_hf(options):
    _interop("hugging_face").export_hf(options.artifact, options.out, options.pack, options.depth)


def _interop(name):
    try:
        return importlib.import_module(f"ds_minimodel.interop.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'ds_minimodel[hf]'") from None


def _hosts(options):
    from ds_minimodel.engine.hosts import read_hostfile, survey

    hosts = read_hostfile(options.hostfile)
    for host, facts in zip(hosts, survey(hosts)):
        print(f"{host.name}: {host.slots} slots, {facts['cores']} cores, {facts['gpus']} GPUs, "
              f"at {facts['address']}, Python {facts['python']}, ds_minimodel {facts['version']}")


def _doctor(_options):
    from ds_minimodel.doctor import report

    print(report())
