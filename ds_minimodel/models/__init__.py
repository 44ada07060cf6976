"""Bodies: one declaration for each kind, and what their modules share.

kind.py has the declaration's type, body.py the parts that are the same in every kind, and passes without padding. A
kind is a package of its own: its declaration, and `model.py` its modules; hf/ has its names in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainValidator, ValidationError

from ds_minimodel.common.errors import reason_of
from ds_minimodel.models.kind import BodyConfig, BodyKind, BodyProducts
from ds_minimodel.models.modern import FAMILIES
from ds_minimodel.models.roberta import Bert, Roberta

if TYPE_CHECKING:
    from ds_minimodel.models.body import Body

__all__ = ["BODIES", "BodyConfig", "BodyConfigOfKind", "BodyKind", "BodyProducts", "make_body", "products_of"]

BODIES: dict[str, BodyKind] = {kind.name: kind for kind in (Roberta(), Bert(), *FAMILIES)}


def _config_of_kind(value: object) -> BodyConfig:
    """A configuration, as JSON has it, of the kind that it names; ValueError where it is none."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in BODIES:
        raise ValueError(f"kind {kind!r:.40}: there are {', '.join(BODIES)}")
    try:
        return BODIES[kind].config.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where and where + ': '}{reason_of(first)}") from None


BodyConfigOfKind = Annotated[BodyConfig, PlainValidator(_config_of_kind)]  # of a JSON file


def make_body(config: BodyConfig, head_depths: Sequence[int] = ()) -> Body:
    """A fresh body of the configuration's kind (BodyKind.body)."""
    return BODIES[config.kind].body(config, head_depths)


def products_of(config: BodyConfig) -> BodyProducts:
    """The products of a pass through a body (BodyKind.products)."""
    return BODIES[config.kind].products(config)
