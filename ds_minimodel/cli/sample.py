"""`ds-minimodel fetch-sample`, of which the package ds_minimodel_examples does the work."""

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError, printable

SETS = ("quickstart", "repro")


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    parser = commands.add_parser("fetch-sample", help="make text and tasks from Debian's packages")
    parser.add_argument(
        "--set",
        default="quickstart",
        choices=SETS,
        help=(
            "quickstart: one source, one task, en and de; repro: all sources, four tasks, in five "
            "languages"
        ),
    )
    parser.add_argument(
        "--out", default="data/sample", metavar="FOLDER", help="default: data/sample"
    )
    parser.add_argument(
        "--languages",
        metavar="L,L",
        help="codes of languages beside en (default: those of the set)",
    )
    parser.set_defaults(run=_run)


def _run(options: Options) -> None:
    try:
        # It brings lxml.
        from ds_minimodel_examples.fetch import fetch
    except ModuleNotFoundError as error:
        raise UserError(
            f"fetch-sample: {error.name} is not installed; run pip install -e '.[sample]' in "
            "ds_minimodel's repository"
        ) from None
    languages = options.languages.split(",") if options.languages else None
    manifest = fetch(options.out, options.set, languages, log=say)
    text = ", ".join(manifest["text"])
    tasks = ", ".join(manifest["tasks"])
    print(printable(f"{options.out}: text in {text}; tasks {tasks}; manifest.json says how much"))
