"""Models of others on the command line: `ds-minimodel extend` and `export-hf`."""

import argparse
import math
from typing import Any

from ds_minimodel.cli.options import add_options, given_of
from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.cli.streams import say
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.extras import import_extra
from ds_minimodel.extend.config import ExtendConfig, read_config
from ds_minimodel.launch.hosts import restart_with_cpu_settings

_AGAIN = (
    "The model itself stays as it is. The same command resumes after an interruption; delete --out "
    "to undo it."
)


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    about = "add a language to a model, from text or from pairs of translations"
    extending = commands.add_parser(
        "extend", help=about, description=f"{about.capitalize()}. {_AGAIN}"
    )
    add_options(extending, ExtendConfig)
    extending.set_defaults(run=_extend)
    exporting = commands.add_parser(
        "export-hf", help="write a body or task model as a folder for transformers"
    )
    exporting.add_argument(
        "artifact",
        metavar="ARTIFACT",
        help="folder of a model, mini-model or task model, or one that extend made",
    )
    exporting.add_argument("out", metavar="OUT", help="folder to write")
    exporting.add_argument(
        "--pack",
        metavar="PACK",
        help="language pack; default: the model's own, or the one that extend added",
    )
    exporting.add_argument(
        "--depth", metavar="N", type=int, help="which of several heads; default: the deepest"
    )
    exporting.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: the model's")
    exporting.add_argument(
        "--strength",
        type=_strength,
        default=1.0,
        metavar="S",
        help="merge strength: share of the body's change to keep (default 1); embeddings "
        "of new tokens are kept whole",
    )
    exporting.add_argument(
        "--adapter",
        action="store_true",
        help="write only the LoRA and the new token embeddings, for PEFT",
    )
    exporting.add_argument(
        "--pool",
        choices=("mean", "first"),
        help="pooling of an encoder, for sentence-transformers",
    )
    exporting.add_argument(
        "--text-license",
        metavar="NAME",
        help="licence of the text that trained the pack, for the card",
    )
    exporting.set_defaults(run=_export_hf)


def _strength(text: str) -> float:
    """Return a merge strength, as argparse's `type` does."""
    try:
        strength = float(text)
    except ValueError:
        strength = math.nan
    if not 0 < strength < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount")
    return strength


def _extend(options: Options) -> None:
    config = read_config(given_of(options, ExtendConfig))
    restart_with_cpu_settings()
    model = hugging_face_module("extend.run").extend(config, say)
    out = config.folder
    say(f"{model}: for transformers' from_pretrained; {out}/recipe.yaml: what ran")
    if (out / "adapter").exists():
        say(f"`ds-minimodel export-hf {out} OUT --strength 0.5` writes another strength in seconds")


def _export_hf(options: Options) -> None:
    exports = hugging_face_module("export.folder")
    if options.adapter:
        if options.depth or options.dtype or options.pool:
            raise UserError(
                "--adapter: it goes with --pack, --strength and --text-license only; leave the "
                "others out"
            )
        exports.export_adapter(
            options.artifact,
            options.out,
            options.pack,
            strength=options.strength,
            text_license=options.text_license,
        )
    else:
        exports.export_hf(
            options.artifact,
            options.out,
            options.pack,
            depth=options.depth,
            dtype=options.dtype,
            pool=options.pool,
            strength=options.strength,
            text_license=options.text_license,
        )
    say(f"{options.out}: written")


def hugging_face_module(name: str) -> Any:
    """Return a module of the package that needs the extra `hf`.

    Raises:
        UserError: What it needs is not installed.
    """
    return import_extra(f"ds_minimodel.{name}", "hf")
