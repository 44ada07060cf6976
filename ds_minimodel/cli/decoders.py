"""Decoders on the command line: `ds-minimodel pack`, `bits` and `compare`."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ds_minimodel.cli.hf import hugging_face_module
from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST
from ds_minimodel.launch.hosts import restart_with_cpu_settings
from ds_minimodel.text.reader import find_text


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    pack = commands.add_parser("pack", help="rebind a language pack to another body")
    actions = pack.add_subparsers(title="actions", metavar="ACTION", required=True)
    plug = actions.add_parser(
        "plug", help="write a pack for another body, such as one with other weights"
    )
    plug.add_argument("body", metavar="BODY", help="folder of the body that the pack is for")
    plug.add_argument("pack", metavar="PACK", help="folder of the language pack")
    plug.add_argument("out", metavar="OUT", help="folder to write")
    plug.set_defaults(run=_plug)
    bits = commands.add_parser(
        "bits", help="score texts in bits per byte, by a decoder with each of several packs"
    )
    bits.add_argument(
        "body",
        metavar="BODY",
        help="folder of a decoder, made here or for transformers",
    )
    bits.add_argument(
        "texts",
        metavar="TEXT",
        nargs="+",
        help="file of documents, separated by blank lines",
    )
    bits.add_argument(
        "--pack",
        metavar="NAME=PACK",
        action="append",
        default=[],
        help="a pack to score with; may be repeated; default: the model's own",
    )
    bits.add_argument(
        "--precision",
        metavar="NAME",
        help=(
            "fp32, bf16, fp16, or auto: the fastest that suits the device; default: fp32 on a CPU, "
            "auto on a GPU"
        ),
    )
    bits.add_argument(
        "--context-bytes",
        metavar="N",
        type=int,
        help="most bytes before a token that predict it; default: as in the report",
    )
    bits.add_argument("--json", action="store_true", help="print JSON")
    bits.set_defaults(run=_bits)

    comparing = commands.add_parser(
        "compare",
        help="show what a decoder, or a PEFT adapter, won and lost against another decoder",
    )
    comparing.add_argument("base", metavar="BASE", help="the decoder before, as `extend` takes one")
    comparing.add_argument(
        "other", metavar="OTHER", help="the decoder after, or a PEFT adapter of the first"
    )
    comparing.add_argument(
        "--text",
        metavar="CODE=FILE",
        action="append",
        default=[],
        help="text that both score, with its language; may be repeated",
    )
    comparing.add_argument(
        "--source", metavar="CODE", default="en", help="language of the questions (default en)"
    )
    comparing.set_defaults(run=_compare)


def _plug(options: Options) -> None:
    from ds_minimodel.evaluation.packs import save_plugged

    save_plugged(options.body, options.pack, options.out)
    say(f"{options.out}: the pack as one of {options.body}")


def _bits(options: Options) -> None:
    # It raises UserError for a file that is missing.
    find_text(options.texts)
    restart_with_cpu_settings()
    from ds_minimodel.evaluation.bits import bits_per_byte
    from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES
    from ds_minimodel.report.render import Table, to_markdown

    context_bytes = CONTEXT_BYTES if options.context_bytes is None else options.context_bytes

    with tempfile.TemporaryDirectory() as scratch:
        body = options.body
        # A folder of transformers gets a reference to it.
        if not (Path(body) / MANIFEST).exists():
            body = f"{scratch}/model"
            hugging_face_module("artifacts.base").refer(
                options.body, body, Path(options.body).resolve().name
            )
        try:
            folders = _folders(options.pack, body)
            rows = bits_per_byte(
                body,
                folders,
                options.texts,
                context_bytes=context_bytes,
                precision=options.precision,
            )
        except UserError as error:
            raise UserError(str(error).replace(body, options.body)) from error
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1, ensure_ascii=False))
        return
    cells = [
        [row.text, row.pack, f"{row.bits_per_byte:.4f}", f"{row.bytes_per_token:.2f}"]
        for row in rows
    ]
    title = f"From at most {context_bytes:,} bytes of context"
    table = Table(title, ["Text", "pack", "bits per byte", "bytes per token"], cells)
    print(to_markdown("Bits per byte", [table]))


def _folders(given: Sequence[str], model: str) -> Mapping[str, str | Path]:
    """Return {language: pack} of those that are given, or of the model itself."""
    folders: dict[str, str] = {}
    for text in given:
        language, equals, folder = text.partition("=")
        if not (language and equals and folder):
            raise UserError(
                f"--pack {text}: it has the form LANGUAGE=FOLDER, for example "
                "de=adapt/minijoint/de/pack"
            )
        if language in folders:
            raise UserError(f"--pack {text}: {language} is given twice")
        folders[language] = folder
    if folders:
        return folders
    from ds_minimodel.artifacts.models import load_model, model_below

    model_folder = model_below(model)
    return {load_model(model_folder)[1].language: model_folder}


def _compare(options: Options) -> None:
    texts: dict[str, str] = {}
    for given in options.text:
        code, equals, file = given.partition("=")
        if not (code and equals and file):
            raise UserError(f"--text {given}: it has the form CODE=FILE, such as de=news.de.txt")
        texts[f"{code}, {Path(file).name}"] = file
    # It raises UserError for a file that is missing.
    find_text(list(texts.values()))
    restart_with_cpu_settings()
    from ds_minimodel.report.page import comparison_page

    found = hugging_face_module("extend.compare").compare_models(
        options.base, options.other, texts, options.source
    )
    print(comparison_page(f"{options.base} and {options.other}", found))
