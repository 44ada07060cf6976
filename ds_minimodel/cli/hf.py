"""`ds-minimodel import-hf` and `export-hf` on the command line."""

import importlib
from pathlib import Path
from types import ModuleType

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE


def add_arguments(commands: Commands) -> None:
    """Add the two commands to argparse's `commands`."""
    importing = commands.add_parser(
        "import-hf", help="read a Hugging Face folder: RoBERTa, BERT, ModernBERT, Llama, Qwen and others"
    )
    importing.add_argument(
        "folder", metavar="DIR", help="weights, configuration and tokenizer files, or the model's name on the Hub"
    )
    importing.add_argument("out", metavar="OUT", help="folder for body and pack")
    importing.add_argument(
        "--language", metavar="CODE", default=UNKNOWN_LANGUAGE, help="of the pack; default: undetermined"
    )
    importing.add_argument("--revision", metavar="R", help="branch, tag or commit of a model on the Hub; default: main")
    importing.set_defaults(run=_import_hf)
    exporting = commands.add_parser("export-hf", help="write a body or task model for Hugging Face's library")
    exporting.add_argument("artifact", metavar="ARTIFACT", help="folder of a body, mini-model or task model")
    exporting.add_argument("out", metavar="OUT", help="folder to write")
    exporting.add_argument("--pack", metavar="PACK", help="language pack; default: the folder `pack` beside ARTIFACT")
    exporting.add_argument("--depth", metavar="N", type=int, help="language-model head; default: the deepest")
    exporting.set_defaults(run=_export_hf)


def _import_hf(options: Options) -> None:
    module = hugging_face_module("hf.convert")
    if Path(options.folder).is_dir():
        if options.revision is not None:
            raise UserError(f"--revision {options.revision}: {options.folder} is a folder here; leave the option out")
        module.import_hf(options.folder, options.out, options.language)
    else:
        try:
            module.import_hf_from_hub(options.folder, options.out, options.language, options.revision)
        except UserError as error:
            raise UserError(f"{error} ({options.folder} is no folder here, so it was looked for on the Hub)") from None
    say(f"{options.out}/body and {options.out}/pack: written")


def _export_hf(options: Options) -> None:
    hugging_face_module("hf.convert").export_hf(options.artifact, options.out, options.pack, options.depth)
    say(f"{options.out}: written")


def hugging_face_module(name: str) -> ModuleType:
    """A module of the package; UserError where what it needs of the extra `hf` is not installed."""
    try:
        return importlib.import_module(f"ds_minimodel.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'ds_minimodel[hf]'") from None
