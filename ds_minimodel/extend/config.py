"""The configuration of `extend`: each option is declared once, as a field of ExtendConfig.

The command line (cli/options.py), `api.extend`, the recipe (extend/recipe.py) and the folder of a
call (extend/call.py) all read that declaration. To add an option is to add a field.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ds_minimodel.common.config import DECIDES_BY_CONTENT, DECIDES_NOTHING, Section, Share, Workers
from ds_minimodel.common.errors import UserError, reason_of
from ds_minimodel.common.files import paths_of
from ds_minimodel.common.names import Name
from ds_minimodel.text.reader import TextSource, find_text

MIN_NEW_TOKENS = 6  # A vocabulary must grow by some; so few are as good as none.
MAX_NEW_TOKENS = 1_000_000
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Metavar:
    """Mark of a field: the name of its value in help.

    Attributes:
        name: Of the value.
        is_positional: Whether the value stands without an option.
    """

    name: str
    is_positional: bool = False


def _path_as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _read_amount(value: object) -> object:
    """Return the number that a text such as "50M" means; other values stay as they are."""
    if not isinstance(value, str):
        return value
    unit = _UNITS.get(value[-1:], 1)
    digits = value if unit == 1 else value[:-1]
    try:
        number = float(Decimal(digits) * unit)
    except InvalidOperation:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("it is no amount, such as 0.5, 2000 or 50M")
    return int(number) if number.is_integer() else number


def _by_language(value: object) -> dict[str, list[str]]:
    """Return {language: files} of a mapping or of texts CODE=FILE."""
    if isinstance(value, Mapping):
        return {code: paths_of(files) for code, files in value.items()}
    by_code: dict[str, list[str]] = {}
    for text in paths_of(value):  # type: ignore[arg-type]
        code, _, file = text.partition("=")
        if not code or not file:
            raise ValueError(f"{text} has no language; give it with one, such as fr={text}")
        by_code.setdefault(code, []).append(file)
    return by_code


PathText = Annotated[str, BeforeValidator(_path_as_text)]
Code = Annotated[Name, Metavar("CODE")]
Files = Annotated[list[str], BeforeValidator(paths_of), Metavar("FILE")]
FilesByLanguage = Annotated[
    dict[Name, list[str]], BeforeValidator(_by_language), Metavar("CODE=FILE")
]
Amount = BeforeValidator(_read_amount)


class ExtendConfig(Section):
    """Configuration of a call of `extend`.

    Fields that are marked with DECIDES_NOTHING may change from one call to the next in the same
    folder. The others, and the content of the files that they name, must stay.
    """

    model: Annotated[PathText, Metavar("MODEL", is_positional=True), DECIDES_BY_CONTENT]
    """The model: a folder of Hugging Face's, a GGUF file or a name on the Hub."""
    language: Code
    """Code of the new language, such as de."""
    text: Annotated[Files, Metavar("TEXT", is_positional=True), DECIDES_BY_CONTENT] = []
    """Text in the new language: files, globs or data sets of the Hub. Not needed with --pairs."""
    pairs: Annotated[Files, DECIDES_BY_CONTENT] = []
    """For a model that gives vectors or labels: texts in a language that it knows, with their
    translations. Each file is a kind of text: TSV, CSV, JSON lines, Parquet, TMX, XLIFF, PO, or a
    dictionary of dictd or StarDict."""
    test_pairs: Annotated[Files, DECIDES_BY_CONTENT] = []
    """Pairs that are only scored, such as other kinds of text."""
    test_task: Annotated[PathText | None, Metavar("FILE"), DECIDES_BY_CONTENT] = None
    """For a classifier: a table of labelled texts in the new language, to score it."""
    pair_columns: Annotated[
        list[str] | None, Field(min_length=2, max_length=2), Metavar("NAME")
    ] = None
    """Columns of the known and of the new language in tables of pairs. Default: the codes of the
    languages."""
    pooling: Annotated[Literal["mean", "cls"] | None, Metavar("HOW")] = None
    """How the last states of an encoder become a vector, if it does not say so: their mean, or cls,
    the first."""
    mini: Annotated[str | None, Field(pattern=r"^[1-9]\d?\+[1-9]\d?$"), Metavar("K+N")] = None
    """Train new tokens over the lowest K layers and N new ones, such as 3+1, which is faster."""
    out: Annotated[PathText | None, Metavar("OUT"), DECIDES_NOTHING] = None
    """Folder for all results. Default: extended-CODE."""
    source: Code = "en"
    """A language that the model knows."""
    source_text: Annotated[Files, DECIDES_BY_CONTENT] = []
    """Text in that language, to score what the model loses. Its words keep their tokens."""
    known_text: Annotated[FilesByLanguage, DECIDES_BY_CONTENT] = {}
    """Text of other languages to keep. Its words keep their tokens, a decoder whose body trains
    replays it, and a part of it is scored."""
    test_text: Annotated[Files, DECIDES_NOTHING] = []
    """Other text to score before and after, in any language."""
    chats: Annotated[Files, DECIDES_BY_CONTENT] = []
    """Dialogues that teach a decoder to answer in the language, as a quarter of its samples: JSON
    lines or Parquet with messages, or prompt and completion."""
    column: Annotated[str, Metavar("NAME")] = "text"
    """Column of the text in JSON lines and tables."""
    train: Annotated[Literal["embeddings", "lora", "all"] | None, Metavar("WHAT")] = None
    """embeddings: only new tokens, and every old weight stays as it is (default of an encoder).
    lora: new tokens and a LoRA of the body (default of a decoder). all: every weight."""
    vocab_size: Annotated[
        int | None, Amount, Field(ge=MIN_NEW_TOKENS, le=MAX_NEW_TOKENS), Metavar("N")
    ] = None
    """Number of new tokens. Default: as many as make text cheaper, at least 6. With 1,000 a Greek
    page took a third of the tokens, and of the time to write it."""
    strength: Annotated[Share | None, Amount, Metavar("S")] = None
    """Merge strength: the share of the body's change that is kept; new embeddings stay whole.
    Default: 1, or less if a decoder loses many right answers."""
    hours: Annotated[float | None, Amount, Field(gt=0), Metavar("H"), DECIDES_NOTHING] = None
    """Time budget on this machine in hours, at most four passes over the text. Default: 1. A larger
    one continues the run."""
    tokens: Annotated[int | None, Amount, Field(ge=0, le=2**50), Metavar("N"), DECIDES_NOTHING] = (
        None
    )
    """Training budget in tokens instead, such as 50M. 0, with --pairs: only
    alignment."""
    ranks: Annotated[Workers | None, Amount, Metavar("N"), DECIDES_NOTHING] = None
    """Processes (ranks) to train with, here or on each host: one for each GPU."""
    hostfile: Annotated[PathText | None, Metavar("FILE"), DECIDES_NOTHING] = None
    """File of hosts for `deepspeed`, which starts a rank in each slot."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.hours is not None and self.tokens is not None:
            raise ValueError("give --hours or --tokens, not both")
        if not self.text and not self.pairs:
            raise ValueError("give TEXT in the new language, or --pairs")
        if self.tokens == 0 and not self.pairs:
            raise ValueError("--tokens 0 leaves nothing to learn from text; give more")
        if self.mini and self.train not in (None, "embeddings"):
            raise ValueError(f"--mini trains embeddings alone, and not {self.train}; leave one out")
        for code in self.known_text:
            if code in (self.source, self.language):
                raise ValueError(
                    f"--known-text {code} is the source or the language that is added; give others"
                )
        return self

    @property
    def folder(self) -> Path:
        """The folder for all that is written."""
        return Path(self.out or f"extended-{self.language}")

    @property
    def texts(self) -> dict[str, list[str]]:
        """{language: files, globs and data sets} of all text to train on or to keep."""
        return {self.source: self.source_text, self.language: self.text, **self.known_text}

    @property
    def given_texts(self) -> dict[str, list[str]]:
        """`texts` without the languages that have none."""
        return {language: files for language, files in self.texts.items() if files}


def option_of(name: str) -> str:
    """Return the option of a field on the command line: `--source-text` for source_text."""
    return f"--{name.replace('_', '-')}"


def read_config(values: Mapping[str, Any]) -> ExtendConfig:
    """Make the configuration of a call, whose paths are there.

    Args:
        values: Fields of ExtendConfig; amounts may be texts, as on the command line.

    Raises:
        UserError: A field is unknown, missing or wrong, or a path leads nowhere. The message names
            the option. Only paths are looked at, so this takes no time.
    """
    try:
        config = ExtendConfig.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(_sentence(fault["loc"], fault["input"], reason_of(fault))) from None
    _check_paths(config)
    return config


def _sentence(place: tuple[int | str, ...], value: object, reason: str) -> str:
    """Return a message on the value of a field, or on all of them where `place` is empty."""
    if not place:
        return f"extend: {reason}"
    option = option_of(str(place[0]))
    if str(place[0]) not in ExtendConfig.model_fields:
        known = ", ".join(ExtendConfig.model_fields)
        return f"extend: {place[0]!r} is no option; there are {known}"
    # Where the field itself is missing, the value is that of all fields.
    if isinstance(value, Mapping):
        return f"{option}: {reason}"
    shown = " ".join(value) if isinstance(value, list) else value
    return f"{option} {shown!s:.60}: {reason}"


def _check_paths(config: ExtendConfig) -> None:
    """Raise UserError for a path that leads nowhere, or a text that two options name."""
    model = Path(config.model)
    is_gguf = model.suffix.lower() == ".gguf"
    if model.is_file() and not is_gguf:
        raise UserError(
            f"{model}: neither a folder of a model nor a GGUF file; MODEL comes first, then TEXT"
        )
    looks_like_name = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(@.+)?", config.model) and not is_gguf
    is_below_folder = "/" in config.model and model.parent.is_dir()
    if not model.exists() and (not looks_like_name or is_below_folder):
        raise UserError(
            f"{model}: no such folder or GGUF file, and no name on the Hub; check the path"
        )
    tables = [*config.pairs, *config.test_pairs]
    if config.test_task:
        tables.append(config.test_task)
    for table in tables:
        if not Path(table).is_file():
            raise UserError(f"{table}: no such file; check the path")
    uses = [
        (config.language, config.text),
        (config.source, config.source_text),
        *config.known_text.items(),
        ("--test-text", config.test_text),
    ]
    first_uses: dict[TextSource, str] = {}
    for use, files in uses:
        for path in find_text(files):
            first_use = first_uses.setdefault(path, use)
            if first_use != use:
                raise UserError(f"{path}: text of {first_use} and of {use}; give each another file")
    # A path that is not UTF-8 raises UnicodeEncodeError here: the recipe could not hold it.
    str(config.folder).encode()
    if config.folder.exists() and not config.folder.is_dir():
        raise UserError(f"{config.folder}: this is a file, and --out names a folder")
