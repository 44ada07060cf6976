"""Models of others on the command line: `ds-minimodel extend` and `export-hf`."""

import argparse
import importlib
import math
import re
from pathlib import Path
from types import ModuleType

from ds_minimodel.cli.steps import Commands, Options, number_of_ranks
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.text.reader import find_text
from ds_minimodel.training.ranks.launch import restart_with_cpu_settings


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    extending = commands.add_parser("extend", help="add a language to a model: one command, plain text, an hour")
    extending.add_argument(
        "model", metavar="MODEL", help="a model folder of Hugging Face's, a GGUF file or a name on the Hub"
    )
    extending.add_argument(
        "text", metavar="TEXT", nargs="+", help="text in the new language: files, globs or data sets of the Hub"
    )
    extending.add_argument("--language", metavar="CODE", required=True, help="the new language, such as de")
    extending.add_argument("--out", metavar="OUT", help="folder for everything it writes (default extended-CODE)")
    extending.add_argument(
        "--source", metavar="CODE", default="en", help="a language that the model knows (default en)"
    )
    extending.add_argument(
        "--source-text",
        metavar="TEXT",
        nargs="+",
        default=[],
        help="text in that language: scored before and after, and split into the same tokens as before",
    )
    extending.add_argument(
        "--chats",
        metavar="FILE",
        nargs="+",
        default=[],
        help="dialogues to learn to answer from: JSON lines or Parquet with messages, or prompt and completion",
    )
    extending.add_argument(
        "--column", metavar="NAME", default="text", help="column of the text in JSON lines and tables (default text)"
    )
    extending.add_argument(
        "--train",
        choices=("embeddings", "lora", "all"),
        help="what trains: only the new token embeddings, so that every old weight stays exactly as it is (default of "
        "an encoder); also a LoRA of the body, with self-generated replay (default of a decoder); or all weights",
    )
    extending.add_argument(
        "--vocab-size",
        type=_whole_number,
        metavar="N",
        help="number of new tokens (default: as many as lower the cost; at least 6, which leaves the model's own)",
    )
    extending.add_argument(
        "--strength",
        type=_number,
        metavar="S",
        help="merge strength, at most 1: share of the body's change to keep (default: the largest that --keep allows)",
    )
    extending.add_argument(
        "--test-text",
        metavar="FILE",
        nargs="+",
        default=[],
        help="more text to score before and after, in any language",
    )
    extending.add_argument(
        "--keep",
        type=_limit,
        metavar="WHAT=PERCENT",
        nargs="+",
        help="what a decoder may lose: answers=5 (points of right English answers) chat=13 (changed likeliest tokens) "
        "contexts=1 (bits of known language at any position) texts=3 (bits of a test text); nothing: set no bounds",
    )
    length = extending.add_mutually_exclusive_group()
    length.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="time budget in hours on this machine (default 1); a larger value continues the run",
    )
    length.add_argument(
        "--tokens", type=_whole_number, metavar="N", help="training budget in tokens instead, such as 50M"
    )
    extending.add_argument(
        "--ranks", type=number_of_ranks, metavar="N", help="processes (ranks) to start here or on each host"
    )
    extending.add_argument("--hostfile", metavar="FILE", help="hosts for `deepspeed`, which starts a rank in each slot")
    extending.set_defaults(run=_extend)
    exporting = commands.add_parser("export-hf", help="write a body or task model for Hugging Face's library")
    exporting.add_argument("artifact", metavar="ARTIFACT", help="folder of a model, mini-model or task model")
    exporting.add_argument("out", metavar="OUT", help="folder to write")
    exporting.add_argument("--pack", metavar="PACK", help="of a language; default: the model's own")
    exporting.add_argument("--depth", metavar="N", type=int, help="language-model head; default: the deepest")
    exporting.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: the model's")
    exporting.add_argument(
        "--strength",
        type=_number,
        default=1.0,
        metavar="S",
        help="merge strength: share of the body's change to keep (default 1)",
    )
    exporting.add_argument(
        "--adapter", action="store_true", help="write the LoRA and new token embeddings only, for PEFT"
    )
    exporting.add_argument(
        "--suppress-new", action="store_true", help="generation leaves out what an added language has of its own"
    )
    exporting.add_argument(
        "--pool", choices=("mean", "first"), help="of an encoder: sentence-transformers reads the folder, too"
    )
    exporting.set_defaults(run=_export_hf, folders=["artifact", "pack"])


def _number(text: str) -> float:
    """argparse's type of an amount, which may end in k, M or G."""
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1)
    try:
        number = float(text if unit == 1 else text[:-1]) * unit
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount")
    return number


def _whole_number(text: str) -> int:
    """argparse's type of a count, which may end so, too."""
    if not (number := _number(text)).is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(number)


def _hours(text: str) -> float:
    """argparse's type of a time: hours, or with the unit h or min."""
    found = re.fullmatch(r"(.*?) ?(h|min)", text)
    return _number(found[1]) / (60 if found[2] == "min" else 1) if found else _number(text)


def _limit(text: str) -> tuple[str, float] | None:
    """argparse's type of what may get worse, and by how much; None for "nothing"."""
    name, _, percent = text.partition("=")
    if text != "nothing" and not percent:
        raise argparse.ArgumentTypeError(f"{text!r} has no bound; give one, such as chat=13, or nothing")
    return (name, _number(percent)) if percent else None


def _check_paths(options: Options, out: Path) -> None:
    """UserError for what paths alone say; what reads a model takes seconds to load."""
    model = Path(options.model)
    if model.is_file() and model.suffix.lower() != ".gguf":
        raise UserError(f"{model}: no folder of a model, and no GGUF file; MODEL comes first, then TEXT")
    on_hub = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(@.+)?", options.model) and model.suffix.lower() != ".gguf"
    if not model.exists() and (not on_hub or ("/" in options.model and model.parent.is_dir())):
        raise UserError(f"{model}: no such folder or GGUF file, and no name on the Hub; check the path")
    text, of_source = find_text(options.text), find_text(options.source_text)
    for path in text:
        if path in of_source:
            raise UserError(f"{path}: text of {options.language} and of {options.source}; give each its own")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: a file; --out names a folder")
    if not re.fullmatch(LANGUAGE_CODE, options.language):
        say(f"--language {options.language}: no code of ISO 639, such as de, so the model's card will name none")


def _extend(options: Options) -> None:
    out = options.out or f"extended-{options.language}"
    _check_paths(options, Path(out))
    restart_with_cpu_settings()
    names = "source source_text chats hours tokens column vocab_size strength test_text ranks hostfile".split()
    named = {name: getattr(options, name) for name in names} | {"trains": options.train, "say": say}
    if options.keep:
        limits = hugging_face_module("hf.kept").LIMITS
        named["keep"] = {} if None in options.keep else limits | dict(options.keep)
    try:
        model = hugging_face_module("extend").extend(options.model, options.text, options.language, out, **named)
    except UserError as error:
        raise UserError(re.sub(r"data\.(column|chats)", r"--\1", str(error))) from error
    say(f"{model}: for transformers' from_pretrained; {out}/recipe.yaml: what ran")


def _export_hf(options: Options) -> None:
    room = hugging_face_module("hf.export")
    if options.adapter:
        if options.pack is None or options.depth or options.dtype or options.suppress_new or options.pool:
            raise UserError("--adapter: takes --pack, and --strength alone beside it")
        room.export_adapter(options.artifact, options.out, options.pack, options.strength)
    else:
        more = options.depth, options.dtype, options.suppress_new, options.pool, options.strength
        room.export_hf(options.artifact, options.out, options.pack, *more)
    say(f"{options.out}: written")


def hugging_face_module(name: str) -> ModuleType:
    """A module of the package; UserError where what it needs of the extra `hf` is not installed."""
    try:
        return importlib.import_module(f"ds_minimodel.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'ds_minimodel[hf]'") from None
