"""The command `fetch-sample`."""

import sys

SETS = ("quickstart", "repro")


def add_arguments(commands):
    """The command, added to argparse's `commands`."""
    parser = commands.add_parser("fetch-sample", help="fetch real text and tasks from Debian's packages")
    parser.add_argument(
        "--set",
        default="quickstart",
        choices=SETS,
        help="quickstart: one source, one task, en and de; repro: all sources and tasks",
    )
    parser.add_argument("--out", default="data/sample", metavar="FOLDER")
    parser.add_argument("--languages", metavar="L,L", help="language codes (default: those of the set)")
    parser.set_defaults(run=_run)


def _run(args):
    from ds_minimodel.sample.fetch import fetch  # lxml, not needed to parse a command line

    languages = args.languages.split(",") if args.languages else None
    manifest = fetch(args.out, args.set, languages, log=lambda line: print(line, file=sys.stderr, flush=True))
    for language, counts in manifest["text"].items():
        print(
            f"{args.out}/text/{language}.txt: {counts['bytes'] / 1e6:.1f} MB, "
            f"{counts['documents']:,} documents, {counts['lines']:,} lines"
        )
    for task, counts in manifest["tasks"].items():
        print(f"{args.out}/tasks/{task}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
