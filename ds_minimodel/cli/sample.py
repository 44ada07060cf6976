"""`ds-minimodel fetch-sample`, of which the package ds_minimodel_examples does the work, and
`chats-from-text`.
"""

from pathlib import Path

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError, printable

SETS = ("quickstart", "repro")


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    parser = commands.add_parser(
        "fetch-sample", help="fetch real text and tasks from Debian's packages"
    )
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
        help="language codes, en beside them (default: those of the set)",
    )
    parser.set_defaults(run=_run)
    chats = commands.add_parser(
        "chats-from-text", help="make dialogues of a text: headings ask, their sections answer"
    )
    chats.add_argument(
        "text",
        metavar="TEXT",
        nargs="+",
        help="files, globs or data sets of the Hub, with headings",
    )
    chats.add_argument(
        "--out", required=True, metavar="FILE", help="JSON lines of messages, for extend's --chats"
    )
    chats.add_argument("--language", required=True, metavar="CODE", help="of the questions")
    chats.add_argument(
        "--column", metavar="NAME", default="text", help="of JSON lines and tables; default: text"
    )
    chats.set_defaults(run=_chats)


def _run(args: Options) -> None:
    try:  # it brings lxml
        from ds_minimodel_examples.fetch import fetch
    except ModuleNotFoundError as error:
        raise UserError(
            f"fetch-sample: {error.name} is not installed; run pip install -e '.[sample]' in "
            "ds_minimodel's repository"
        ) from None
    manifest = fetch(
        args.out, args.set, args.languages.split(",") if args.languages else None, log=say
    )
    languages, tasks = ", ".join(manifest["text"]), ", ".join(manifest["tasks"])
    print(printable(f"{args.out}: text in {languages}; tasks {tasks}; manifest.json says how much"))


def _chats(args: Options) -> None:
    from ds_minimodel.text.chats import QUESTIONS, chats_from_text

    if args.language not in QUESTIONS:
        say(
            f"--language {args.language}: a heading stands for a question; there are some in "
            f"{', '.join(QUESTIONS)}"
        )
    number = chats_from_text(args.text, Path(args.out), args.language, args.column)
    print(printable(f"{args.out}: {number:,} dialogues"))
