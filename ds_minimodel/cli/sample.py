"""`ds-minimodel fetch-sample` on the command line; the package ds_minimodel_examples does the work."""

from collections.abc import Callable

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError, printable

SETS = ("quickstart", "repro", "study")


def add_arguments(commands: Commands) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser("fetch-sample", help="fetch real text and tasks from Debian's packages")
    parser.add_argument(
        "--set",
        default="quickstart",
        choices=SETS,
        help="quickstart: one source, one task, en and de; repro and study: all sources, four tasks, "
        "in five and in six languages",
    )
    parser.add_argument("--out", default="data/sample", metavar="FOLDER")
    parser.add_argument("--languages", metavar="L,L", help="language codes (default: those of the set)")
    parser.set_defaults(run=_run)


def _run(args: Options) -> None:
    languages = args.languages.split(",") if args.languages else None
    manifest = _examples_fetch()(args.out, args.set, languages, log=say)
    for language, counts in manifest["text"].items():
        print(
            f"{printable(args.out)}/text/{language}.txt: {counts['bytes'] / 1e6:.1f} MB, "
            f"{counts['documents']:,} documents, {counts['lines']:,} lines"
        )
    for task, counts in manifest["tasks"].items():
        print(
            f"{printable(args.out)}/tasks/{task}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
        )


def _examples_fetch() -> Callable[..., dict]:
    """`fetch` of ds_minimodel_examples, which brings lxml; UserError where either is not installed."""
    try:
        from ds_minimodel_examples.fetch import fetch
    except ModuleNotFoundError as error:
        raise UserError(
            f"fetch-sample: {error.name} is not installed; run pip install -e '.[sample]' in ds_minimodel's repository"
        ) from None
    return fetch
