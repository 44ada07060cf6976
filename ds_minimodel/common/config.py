"""Sections of settings: strict mappings of typed keys, each with what it decides. The recipe is
made of them.
"""

from collections.abc import Collection, Mapping, Sequence
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
    """`values`, a list or the values of a mapping; ValueError where one is there twice."""
    listed: Sequence = list(values.values() if isinstance(values, dict) else values)
    for place, value in enumerate(listed):
        if value in listed[:place]:
            raise ValueError(f"{value!r} is there twice")
    return values


# docs/recipes.md says which keys are which.
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(gt=0, le=10**7)]  # of a tensor, one way
Length = Annotated[int, Field(ge=3, le=10**7)]  # of a sequence: <s>, a token and another or </s>
Few = Annotated[int, Field(gt=0, le=10**4)]  # layers, runs
Workers = Annotated[int, Field(gt=0, le=1024)]
Seed = Annotated[
    int, Field(ge=0, le=2**63 - 1)
]  # torch takes 64 bits, and finetuning counts on from it
EachOnce = AfterValidator(each_once)
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
OneOrMore = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class Decides(Enum):
    """What a key decides of a job's outcome; marks keys whose values a job's record does not hold
    as they are.
    """

    NOTHING = "how the work is done, and where it lies: the same bits"
    ROUNDING = "in what order it is summed: the same but for rounding"
    BY_CONTENT = "the content of the files that it names"


DECIDES_NOTHING, DECIDES_ROUNDING, DECIDES_BY_CONTENT = Decides


@dataclass(frozen=True, eq=False)
class OneOf:
    """Mark of a key whose value is one of the names in a registry, as they are when the recipe is
    read.
    """

    registry: Mapping[str, object]

    def check(self, name: str) -> str:
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
    """A mapping of the recipe: frozen, of known keys only. The docstring below a key is its row in
    docs/recipes.md.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def recorded(self) -> dict[str, Any]:
        """The settings that decide a job's outcome, as its record holds them. UserError for a
        missing file.
        """
        marks = {name: decides(type(self), name) for name in type(self).model_fields}
        return {
            name: _recorded(getattr(self, name), by_content=mark is DECIDES_BY_CONTENT)
            for name, mark in marks.items()
            if mark in (None, DECIDES_BY_CONTENT)
        }


def _recorded(value: Any, by_content: bool = False) -> Any:
    if isinstance(value, Section):
        return value.recorded()
    if isinstance(value, Mapping):
        return {key: _recorded(part, by_content) for key, part in value.items()}
    if not by_content or not value:
        return value
    try:
        return Content.of(value)
    except OSError as error:
        raise UserError(f"{value}: {error.strerror}; check the path in the recipe") from None


def decides(section: type[Section], key: str) -> Decides | None:
    """The mark of a key of `section`; None: its value decides."""
    return next(
        (mark for mark in section.model_fields[key].metadata if isinstance(mark, Decides)), None
    )
