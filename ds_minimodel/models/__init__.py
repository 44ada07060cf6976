"""Bodies: one declaration for each kind, and what their modules share.

kind.py is the interface of a kind, body.py has the parts that all kinds share, and passes without
padding. A family of kinds is a package: its configurations, and `model.py` its modules; hf/names/
has their names in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainValidator, ValidationError

from ds_minimodel.common.errors import reason_of
from ds_minimodel.models.kind import BodyConfig
from ds_minimodel.models.modern import FAMILIES
from ds_minimodel.models.roberta import BertConfig, DistilBertConfig, RobertaConfig

__all__ = ["BODIES", "BodyConfig", "BodyConfigOfKind"]

BODIES: dict[str, type[BodyConfig]] = {
    config.model_fields["kind"].default: config
    for config in (RobertaConfig, BertConfig, DistilBertConfig, *FAMILIES)
}


def _config_of_kind(value: object) -> BodyConfig:
    """Return a configuration, from its JSON, of the kind that it names; else raise ValueError."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in BODIES:
        raise ValueError(f"kind {kind!r:.40}: there are {', '.join(BODIES)}")
    try:
        return BODIES[kind].model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where and where + ': '}{reason_of(first)}") from None


# A configuration as a field of a JSON file.
BodyConfigOfKind = Annotated[BodyConfig, PlainValidator(_config_of_kind)]
