"""RoBERTa and BERT: encoders with post-LN layers, learned positions and exact GELU.

Numerics follow fairseq's RoBERTa. BERT differs in the epsilon of its norms and in token types,
vectors that tell the two texts of a pair apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ds_minimodel.common.config import Few
from ds_minimodel.models.kind import BodyConfig, BodyProducts, LayerProducts

if TYPE_CHECKING:
    from ds_minimodel.models.body import Body


class RobertaConfig(BodyConfig):
    """RoBERTa, XLM-R and CamemBERT; defaults: RoBERTa-base's."""

    kind: Literal["roberta"] = "roberta"
    norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    """Epsilon of the norms."""

    def make_body(self, head_depths: Sequence[int] = ()) -> Body:
        """Make a fresh RobertaBody."""
        from ds_minimodel.models.roberta.model import RobertaBody

        return RobertaBody(self, head_depths)

    @property
    def products(self) -> BodyProducts:
        """The products that a pass through a body makes."""
        h = self.hidden_size
        f = self.ffn_size
        layer = LayerProducts(
            key=4 * h * h, query=2 * h * h, output=2 * h * h + 4 * h * f, pair=4 * h
        )
        return BodyProducts((layer,) * self.num_layers, head=2 * h * h)


class BertConfig(RobertaConfig):
    """BERT and mBERT; defaults: BERT-base's."""

    kind: Literal["bert"] = "bert"  # type: ignore[assignment]
    norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-12

    token_types: ClassVar[int] = 2
    separators: ClassVar[int] = 1


class DistilBertConfig(RobertaConfig):
    """DistilBERT, BERT without token types; defaults: the base model's."""

    kind: Literal["distilbert"] = "distilbert"  # type: ignore[assignment]
    num_layers: Few = 6
    norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-12

    separators: ClassVar[int] = 1
    task_activation: ClassVar[str] = "relu"
