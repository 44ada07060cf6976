"""ModernBERT: an encoder with pre-norm layers, rotary positions, gated feed-forward blocks and windowed attention.

Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder …". Every third layer sees the
whole sequence, the others a window; the first layer has no norm before its attention; only the output has a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ds_minimodel.bodies.config import BodyConfig, BodyProducts, LayerProducts
from ds_minimodel.bodies.kind import BodyKind
from ds_minimodel.common.sections import Few, Length, NonNegativeInt, Probability, Size

if TYPE_CHECKING:
    from ds_minimodel.bodies.body import Body
    from ds_minimodel.bodies.hugging_face import Architecture

RotaryBase = Annotated[float, Field(ge=1, le=1e9)]


class ModernBertConfig(BodyConfig):
    """Sizes of a ModernBERT; the defaults are the published base model's."""

    kind: Literal["modernbert"] = "modernbert"
    num_layers: Few = 22
    ffn_size: Size = 1152
    max_positions: Length = 8192
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    window: NonNegativeInt = 64  # keys on each side that a layer sees which does not see all
    global_every: Few = 3  # layers 0, 3, 6 … see all
    global_base: RotaryBase = 160_000.0  # of the rotary positions, in layers that see all
    local_base: RotaryBase = 10_000.0

    separators: ClassVar[int] = 1
    tasks_read_head: ClassVar[bool] = True

    @model_validator(mode="after")
    def _heads_turn_in_planes(self) -> Self:
        if self.hidden_size // self.num_heads % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} / num_heads {self.num_heads} must be even, for rotary positions"
            )
        return self

    @property
    def period(self) -> int:
        return self.global_every

    def is_global(self, index: int) -> bool:
        """Whether layer `index`, from 0, sees the whole sequence."""
        return index % self.global_every == 0


class ModernBert(BodyKind):
    """ModernBERT's body."""

    name = "modernbert"
    config = ModernBertConfig
    adaptable = ("embedding_norm",)
    without_kernels = ("rotary positions", "windowed attention", "gated GELU", "norms without bias")

    def body(self, config: BodyConfig, head_depths: Sequence[int] = ()) -> Body:
        from ds_minimodel.bodies.modernbert.model import ModernBertBody

        assert isinstance(config, ModernBertConfig)
        return ModernBertBody(config, head_depths)

    def products(self, config: BodyConfig) -> BodyProducts:
        assert isinstance(config, ModernBertConfig)
        h, f = config.hidden_size, config.ffn_size
        layer = LayerProducts(key=4 * h * h, query=2 * h * h, output=2 * h * h + 6 * h * f, pair=4 * h)
        local = layer._replace(reach=2 * config.window + 1)
        layers = tuple(layer if config.is_global(index) else local for index in range(config.num_layers))
        return BodyProducts(layers, head=2 * h * h)

    def hugging_face(self) -> Sequence[Architecture]:
        from ds_minimodel.bodies.modernbert.hugging_face import MODERNBERT

        return MODERNBERT
