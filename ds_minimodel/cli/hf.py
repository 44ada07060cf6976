"""Models of others on the command line: `ds-minimodel extend` and `export-hf`."""

import argparse
import importlib
import math
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import ModuleType

from ds_minimodel.cli.steps import Commands, Options, number_of_ranks
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.launch.hosts import restart_with_cpu_settings
from ds_minimodel.text.reader import find_text

_AGAIN = (
    "The model itself stays as it is. The same command goes on after an interruption; delete --out "
    "to undo it."
)


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    about = "add a language to a model: one command, plain text, an hour"
    extending = commands.add_parser(
        "extend", help=about, description=f"{about.capitalize()}. {_AGAIN}"
    )
    add, files = (
        extending.add_argument,
        {"nargs": "+", "action": "extend", "metavar": "FILE", "default": []},
    )
    add(
        "model",
        metavar="MODEL",
        help="the model: a folder of Hugging Face's, a GGUF file or a name on the Hub",
    )
    text = "text in the new language: files, globs or data sets of the Hub"
    add("text", metavar="TEXT", nargs="+", help=text)
    add("--language", metavar="CODE", required=True, help="code of the new language, such as de")
    add("--out", metavar="OUT", help="folder for all that is written (default extended-CODE)")
    add(
        "--source",
        metavar="CODE",
        default="en",
        help="a language that the model knows already (default en)",
    )
    text = (
        "text in that language, to see what the model loses there; no new token will split it "
        "otherwise"
    )
    add("--source-text", **files, help=text)
    text = (
        "dialogues, if it is to answer in the language: JSON lines or Parquet with messages, or "
        "prompt and completion"
    )
    add("--chats", **files, help=text)
    text = "column of the text in JSON lines and tables (default text)"
    add("--column", metavar="NAME", default="text", help=text)
    text = (
        "embeddings: new tokens alone, and every old weight stays as it is (default of an "
        "encoder); lora: new tokens "
        "and a LoRA (default of a decoder); all: every weight"
    )
    add("--train", choices=("embeddings", "lora", "all"), help=text)
    text = (
        "number of new tokens (default: as many as make text cheaper; 6, the fewest, are as good "
        "as none)"
    )
    add("--vocab-size", type=_whole_number, metavar="N", help=text)
    text = (
        "merge strength: how much of what was learned to keep, at most 1 (default: 1, and less "
        "where a decoder loses many right answers)"
    )
    add("--strength", type=_number, metavar="S", help=text)
    add("--test-text", **files, help="other text to score before and after, in any language")
    text = (
        "text of other languages that are to stay: no new token will split it otherwise, a decoder "
        "replays it while "
        "its body trains, and it is scored"
    )
    add("--known-text", **{**files, "metavar": "CODE=FILE"}, type=_of_language, help=text)
    length = extending.add_mutually_exclusive_group()
    text = "time budget in hours on this machine (default 1); a larger value continues the run"
    length.add_argument("--hours", type=_number, metavar="H", help=text)
    text = "training budget in tokens instead, such as 50M"
    length.add_argument("--tokens", type=_whole_number, metavar="N", help=text)
    text = "processes (ranks) to train with, here or on each host: one for each GPU"
    add("--ranks", type=number_of_ranks, metavar="N", help=text)
    add(
        "--hostfile", metavar="FILE", help="hosts for `deepspeed`, which starts a rank in each slot"
    )
    extending.set_defaults(run=_extend)
    exporting = commands.add_parser(
        "export-hf", help="write a body or task model for Hugging Face's library"
    )
    exporting.add_argument(
        "artifact", metavar="ARTIFACT", help="folder of a model, mini-model or task model"
    )
    exporting.add_argument("out", metavar="OUT", help="folder to write")
    exporting.add_argument("--pack", metavar="PACK", help="of a language; default: the model's own")
    exporting.add_argument(
        "--depth", metavar="N", type=int, help="language-model head; default: the deepest"
    )
    exporting.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: the model's")
    exporting.add_argument(
        "--strength",
        type=_number,
        default=1.0,
        metavar="S",
        help="merge strength: share of the body's change to keep (default 1)",
    )
    exporting.add_argument(
        "--adapter",
        action="store_true",
        help="write the LoRA and new token embeddings only, for PEFT",
    )
    exporting.add_argument(
        "--pool",
        choices=("mean", "first"),
        help="of an encoder: sentence-transformers reads the folder, too",
    )
    exporting.set_defaults(run=_export_hf)


def _number(text: str) -> float:
    """argparse's type of an amount, which may end in k, M or G."""
    unit = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    try:
        number = float(Decimal(text if unit == 1 else text[:-1]) * unit)
    except InvalidOperation:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount")
    return number


def _whole_number(text: str) -> int:
    """argparse's type of a count, which may end so, too."""
    if not (number := _number(text)).is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(number)


def _of_language(text: str) -> tuple[str, str]:
    """argparse's type of a text and the language that it is of."""
    code, _, file = text.partition("=")
    if not code or not file:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no language; give it with one, such as fr={text}"
        )
    return code, file


def _check_paths(options: Options, out: Path) -> None:
    """UserError for what paths alone say; what reads a model takes seconds to load."""
    model = Path(options.model)
    if model.is_file() and model.suffix.lower() != ".gguf":
        raise UserError(
            f"{model}: no folder of a model, and no GGUF file; MODEL comes first, then TEXT"
        )
    on_hub = (
        re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(@.+)?", options.model)
        and model.suffix.lower() != ".gguf"
    )
    if not model.exists() and (not on_hub or ("/" in options.model and model.parent.is_dir())):
        raise UserError(
            f"{model}: no such folder or GGUF file, and no name on the Hub; check the path"
        )
    texts = dict.fromkeys(find_text(options.text), options.language)
    others = [*((options.source, file) for file in options.source_text), *options.known_text]
    for language, file in [*others, *(("--test-text", file) for file in options.test_text)]:
        for path in find_text([file]):
            if texts.setdefault(path, language) != language:
                raise UserError(
                    f"{path}: text of {texts[path]} and of {language}; give each its own"
                )
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: a file; --out names a folder")
    for name, less in {
        "language": "the model's card names none",
        "source": "questions are in English",
    }.items():
        if not re.fullmatch(LANGUAGE_CODE, code := getattr(options, name)):
            say(f"--{name} {code}: no code of ISO 639, such as de, so {less}")


def _extend(options: Options) -> None:
    out = options.out or f"extended-{options.language}"
    _check_paths(options, Path(out))
    restart_with_cpu_settings()
    names = (
        "source source_text chats hours tokens column vocab_size strength test_text ranks hostfile"
    ).split()
    named = {name: getattr(options, name) for name in names} | {"trains": options.train, "say": say}
    for language, file in options.known_text:
        named.setdefault("known_text", {}).setdefault(language, []).append(file)
    try:
        model = hugging_face_module("extend.run").extend(
            options.model, options.text, options.language, out, **named
        )
    except UserError as error:
        raise UserError(
            re.sub(r"(?<![\w./-])data\.(column|chats)\b", r"--\1", str(error))
        ) from error
    say(f"{model}: for transformers' from_pretrained; {out}/recipe.yaml: what ran")


def _export_hf(options: Options) -> None:
    room = hugging_face_module("export.folder")
    if options.adapter:
        if options.pack is None or options.depth or options.dtype or options.pool:
            raise UserError("--adapter: takes --pack, and --strength alone beside it")
        room.export_adapter(options.artifact, options.out, options.pack, options.strength)
    else:
        more = options.depth, options.dtype, options.pool, options.strength
        room.export_hf(options.artifact, options.out, options.pack, *more)
    say(f"{options.out}: written")


def hugging_face_module(name: str) -> ModuleType:
    """A module of the package; UserError where what it needs of the extra `hf` is not installed."""
    try:
        return importlib.import_module(f"ds_minimodel.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'ds_minimodel[hf]'") from None
