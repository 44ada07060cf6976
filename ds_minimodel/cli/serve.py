"""`ds-minimodel pack`, `predict` and `bits` on the command line."""

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.training.ranks.launch import restart_with_cpu_settings

if TYPE_CHECKING:
    from ds_minimodel.serve.predictor import Predictor

STDIN = "-"


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    pack = commands.add_parser("pack", help="show or check a language pack, put it beside a body, join several")
    actions = pack.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="language, vocabulary, embedding space, cost; all files verified")
    show.add_argument("pack", metavar="PACK")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)
    check = actions.add_parser("check", help="whether a pack is whole and, with BODY, fits it")
    check.add_argument("pack", metavar="PACK")
    check.add_argument("body", metavar="BODY", nargs="?", help="folder of a body, mini-model or task model")
    check.set_defaults(run=_check)
    plug = actions.add_parser("plug", help="write one folder with a body or task model and a pack")
    plug.add_argument("body", metavar="BODY")
    plug.add_argument("pack", metavar="PACK")
    plug.add_argument("out", metavar="OUT")
    plug.add_argument(
        "--onto", action="store_true", help="BODY is another one of the pack's embedding space, by your declaration"
    )
    plug.set_defaults(run=_plug)
    join = actions.add_parser("join", help="write one pack of several languages that were added to one base")
    join.add_argument("out", metavar="OUT")
    join.add_argument("packs", metavar="PACK", nargs="+", help="two or more; a piece of two of them is the first one's")
    join.set_defaults(run=_join)
    predict = commands.add_parser("predict", help="ask a task model or a body, in any language with a pack")
    predict.add_argument("model", metavar="MODEL", help="folder of a task model or a body")
    predict.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="lines to answer together, as they are typed; without it, those of standard input, each at once",
    )
    _add_packs(predict, "a language; may be repeated; default: the folder `pack` beside MODEL")
    predict.add_argument("--head", metavar="N", type=int, help="depth of the head of a body; default: the deepest")
    predict.add_argument("--top", metavar="K", type=int, default=5, help="pieces for each <mask> (5)")
    predict.add_argument("--tokens", metavar="N", type=int, help="with which a decoder continues a text, at most (32)")
    predict.set_defaults(run=_predict)
    bits = commands.add_parser("bits", help="bits a byte of texts, by a decoder with each of several packs")
    bits.add_argument("body", metavar="BODY", help="folder of a body that predicts next tokens")
    bits.add_argument("texts", metavar="TEXT", nargs="+", help="file of documents, with an empty line between them")
    _add_packs(bits, "a pack to compare; may be repeated; default: the folder `pack` beside BODY")
    bits.add_argument(
        "--context-bytes", metavar="N", type=int, default=600, help="from which a token is predicted, at most (600)"
    )
    bits.add_argument("--json", action="store_true", help="print JSON")
    bits.set_defaults(run=_bits)


def _add_packs(command: argparse.ArgumentParser, text: str) -> None:
    """Options that say by which packs, and in what, a model answers."""
    command.add_argument("--pack", metavar="LANGUAGE=PACK", action="append", default=[], help=text)
    command.add_argument(
        "--precision",
        metavar="NAME",
        help="fp32, bf16, fp16, or auto: the fastest that suits the device; default: fp32 on a CPU, auto on a GPU",
    )


def _show(options: Options) -> None:
    from ds_minimodel.serve.packs import facts_of

    facts = facts_of(options.pack)
    if options.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    for name, value in facts.items():
        print(printable(f"{name}: {value}"))


def _check(options: Options) -> None:
    from ds_minimodel.serve.packs import check_pack

    check_pack(options.pack, options.body)
    print(printable(f"{options.pack}: whole" + (f", fits {options.body}" if options.body else "")))


def _plug(options: Options) -> None:
    from ds_minimodel.serve.packs import save_plugged

    save_plugged(options.body, options.pack, options.out, options.onto)
    say(f"{options.out}: body and pack; ask it with `ds-minimodel predict {options.out}/body`")


def _join(options: Options) -> None:
    from ds_minimodel.serve.packs import join_packs

    if len(options.packs) < 2:
        raise UserError("pack join: give two packs or more")
    join_packs(options.packs, options.out)
    say(f"{options.out}: a pack; put it beside the base's body with `ds-minimodel pack plug`")


def _predict(options: Options) -> None:
    from ds_minimodel.serve.predictor import Predictor

    folders = _folders(options.pack, options.model)
    predictor = Predictor(options.model, folders, options.head, options.top, options.precision, options.tokens)
    if options.file is not None:
        _answer_file(predictor, options.file)
        return
    _say_precision(predictor)
    _converse(predictor)


def _bits(options: Options) -> None:
    restart_with_cpu_settings()
    from ds_minimodel.report.render import Table, to_markdown
    from ds_minimodel.serve.bits import bits_per_byte

    folders = _folders(options.pack, options.body)
    rows = bits_per_byte(options.body, folders, options.texts, options.context_bytes, options.precision)
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1, ensure_ascii=False))
        return
    cells = [[row.text, row.pack, f"{row.bits_per_byte:.4f}", f"{row.bytes_per_token:.2f}"] for row in rows]
    title = f"From at most {options.context_bytes:,} bytes of context"
    table = Table(title, ["Text", "pack", "bits a byte", "bytes a token"], cells)
    print(to_markdown("Bits a byte", [table]))


def _say_precision(predictor: "Predictor") -> None:
    say(f"predict: answers in {predictor.precision} on the {predictor.device.type.upper()}")


def _converse(predictor: "Predictor") -> None:
    """Answer the lines of standard input, each before the next is read; a bad one does not end the conversation."""
    if isinstance(sys.stdin, io.TextIOWrapper):  # a byte order mark is no text, and bad bytes end one line, not all
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="\n")  # and CR ends no line
    for number, line in enumerate(sys.stdin, 1):
        try:
            (answer,) = predictor.predict([_request(line.rstrip("\r\n"), number, predictor)])
        except UserError as error:
            message = str(error).removeprefix("request 1: ").removeprefix(f"standard input:{number}: ")
            say(f"ds-minimodel: line {number}: {message}")
            continue
        print(json.dumps(answer, ensure_ascii=False), flush=True)


def _folders(given: Sequence[str], model: str) -> Mapping[str, str | Path]:
    """{language: pack}: those given, or the one beside the model."""
    from ds_minimodel.serve.predictor import beside

    folders: dict[str, str] = {}
    for text in given:
        language, equals, folder = text.partition("=")
        if not (language and equals and folder):
            raise UserError(f"--pack {text}: it has the form LANGUAGE=FOLDER, for example de=adapt/minijoint/de/pack")
        if language in folders:
            raise UserError(f"--pack {text}: {language} is given twice")
        folders[language] = folder
    return folders or beside(model)


def _answer_file(predictor: "Predictor", path: str) -> None:
    """Answer the lines of a file, none where one is wrong."""
    from ds_minimodel.tasks.tables import read_text, text_lines

    requests: list[dict[str, Any]] = []
    for number, line in enumerate(text_lines(read_text(path), path), 1):
        requests.append(_request(line, number, predictor, path))
        predictor.check_request(requests[-1], f"{path}:{number}")
    _say_precision(predictor)
    for request, answer in zip(requests, predictor.predict(requests), strict=True):
        named = {key: request[key] for key in ("id", "language") if key in request}
        print(json.dumps({**named, **answer}, ensure_ascii=False))


def _request(line: str, number: int, predictor: "Predictor", path: str = "standard input") -> dict[str, Any]:
    """A request from a line: a JSON object, or its texts with tabs between, the language first of several."""
    if line.lstrip().startswith("{"):
        from ds_minimodel.data.rows import json_object

        return json_object(line, path, number)
    names, texts = predictor.answerer.fields, line.split("\t")
    if len(predictor.packs) > 1:
        names = ("language", *names)
    if len(texts) != len(names) or not line.strip():
        found = f"{len(texts)} fields" if line.strip() else "empty"
        raise UserError(f"{path}:{number}: {found}; type {', '.join(names)} with tabs between, or a JSON object")
    return dict(zip(names, texts, strict=True))
