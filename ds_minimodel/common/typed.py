"""JSON files read into pydantic models: what is missing, of a wrong type or out of bounds is one line with its key."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ds_minimodel.common.errors import UserError

MAX_JSON_BYTES = 1 << 24  # of a configuration; vocabularies say their own
Model = TypeVar("Model", bound=BaseModel)
Probability = Annotated[float, Field(ge=0, lt=1)]


class Typed(BaseModel):
    """Part of a file from elsewhere: a number is no text, true is no number; keys that are not declared pass."""

    model_config = ConfigDict(strict=True, frozen=True)


class Strict(Typed):
    """The same where an unknown key may mean something that would be lost: it is refused."""

    model_config = ConfigDict(extra="forbid")


def read_typed(path: str | Path, schema: type[Model], max_bytes: int = MAX_JSON_BYTES) -> Model:
    """The JSON file `path` as a `schema`; UserError with the first wrong key, its value and what is expected."""
    try:
        return schema.model_validate_json(read_file(path, max_bytes))
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """The bytes of a file; UserError where there is none, or it has more than `max_bytes`."""
    path = Path(path)
    try:
        if not path.is_file():  # a named pipe would be waited for
            raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        if path.stat().st_size > max_bytes:
            raise UserError(f"{path}: {path.stat().st_size} bytes, which is more than such a file has ({max_bytes})")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def first_fault(error: ValidationError) -> str:
    """The first of pydantic's faults: `key.key: what is expected, not this value`."""
    fault = error.errors(include_url=False, include_context=False)[0]
    value: Any = fault["input"]
    given = isinstance(value, (bool, int, float, str)) and fault["type"] not in ("missing", "json_invalid")
    message = fault["msg"].removeprefix("Value error, ") + (f", not {value!r:.60}" if given else "")
    key = ".".join(str(part) for part in fault["loc"])
    line = f"{key:.120}: {message}" if key else message
    return "".join(character if character.isprintable() else "?" for character in line)
