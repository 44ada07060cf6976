"""Typed sections of settings, of which a recipe is made; each key says what it decides."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Content

Listed = TypeVar("Listed", bound=Collection)


def each_once(values: Listed) -> Listed:
    """Return `values`, a list or a mapping, unless one of its values is there twice.

    Raises:
        ValueError: a value is there twice.
    """
    seen: list[object] = []
    for value in values.values() if isinstance(values, dict) else values:
        if value in seen:
            raise ValueError(f"{value!r} is there twice")
        seen.append(value)
    return values


# Types of settings, with their bounds.
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**9)]
# One dimension of a tensor.
Size = Annotated[int, Field(gt=0, le=10**7)]
# Tokens of a sequence. The shortest is <s>, a token, and another one or </s>.
Length = Annotated[int, Field(ge=3, le=10**7)]
# A count of layers or runs.
Few = Annotated[int, Field(gt=0, le=10**4)]
Workers = Annotated[int, Field(gt=0, le=1024)]
# torch takes 64 bits. The bound leaves room for finetuning, which counts on from the seed.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
EachOnce = AfterValidator(each_once)
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
OneOrMore = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class Decides(Enum):
    """What a key decides of a job's outcome, where that is not simply its value.

    A job's record leaves out the keys that decide nothing or rounding alone, and holds a hash of
    the files that a key decides by content.
    """

    NOTHING = "how the work is done, and where it lies: the same bits"
    ROUNDING = "in what order it is summed: the same but for rounding"
    BY_CONTENT = "the content of the files that it names"


DECIDES_NOTHING = Decides.NOTHING
DECIDES_ROUNDING = Decides.ROUNDING
DECIDES_BY_CONTENT = Decides.BY_CONTENT


@dataclass(frozen=True, eq=False)
class OneOf:
    """Mark of a key whose value must be a name in `registry` at the time the recipe is read."""

    registry: Mapping[str, object]

    def check(self, name: str) -> str:
        """Return `name`, or raise ValueError with the names that the registry has."""
        if name not in self.registry:
            *names, last = map(repr, self.registry)
            raise ValueError(f"Input should be {', '.join(names)}{' or ' if names else ''}{last}")
        return name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.registry)}


class Section(BaseModel):
    """A mapping of the recipe: frozen, and with known keys only.

    The docstring below a key is its comment in docs/recipes.md.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide a job's outcome, as the job's record holds them.

        Raises:
            UserError: a file that a key decides by content is missing.
        """
        record = {}
        for key in type(self).model_fields:
            mark = decides(type(self), key)
            if mark in (None, DECIDES_BY_CONTENT):
                record[key] = _recorded(getattr(self, key), by_content=mark is DECIDES_BY_CONTENT)
        return record


def _recorded(value: Any, *, by_content: bool) -> Any:
    """Return what a job's record holds of a value: it, or the Content of the file that it names."""
    if isinstance(value, Section):
        return value.recorded()
    if isinstance(value, Mapping):
        return {key: _recorded(part, by_content=by_content) for key, part in value.items()}
    if not by_content or not value:
        return value
    try:
        return Content.of(value)
    except OSError as error:
        raise UserError(f"{value}: {error.strerror}; check the path in the recipe") from None


def decides(section: type[Section], key: str) -> Decides | None:
    """Return the mark of a key of `section`, or None where its value decides."""
    for mark in section.model_fields[key].metadata:
        if isinstance(mark, Decides):
            return mark
    return None
