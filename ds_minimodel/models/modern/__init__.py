"""Bodies of today have rotary positions, gated feed-forward blocks, and norms around a branch.

One set of modules (model.py) and one form of name table (hf/names/modern.py) serve ModernBERT,
EuroBERT, Llama, Qwen 2, Qwen 3, OLMo 2 and Gemma 3. What a family fixes is a class variable of its
configuration; what differs from model to model of a family is a field, and so a key of `model` in a
recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from ds_minimodel.common.config import Few, Length, NonNegativeInt, Probability, Size
from ds_minimodel.models.kind import BodyConfig, BodyProducts, LayerProducts

if TYPE_CHECKING:
    from ds_minimodel.models.body import Body

RotaryBase = Annotated[float, Field(ge=1, le=1e9)]
Activation = Literal["gelu", "gelu_tanh", "silu"]
QueryNorm = Literal["none", "head", "whole"]
Epsilon = Annotated[float, Field(gt=0, le=0.01)]
Scale = Annotated[float, Field(ge=1, le=1e7)]


class Rotation(NamedTuple):
    """What decides the angles of rotary positions.

    Waves of less than original / high positions stay, those of more than original / low are slowed
    down by the whole factor, and those between by a part of it (Llama 3.1).

    Attributes:
        base: of the wave lengths.
        factor: by which long waves are slowed down.
        low: `low_freq_factor` of published configurations.
        high: `high_freq_factor` of these.
        original: positions of the model before its waves were slowed down.
    """

    base: float
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: float = 8192


def _check_scaling(scaling: tuple[float, ...]) -> tuple[float, ...]:
    if scaling and (len(scaling) != 4 or scaling[1] > scaling[2]):
        raise ValueError(
            "give none, or factor, low, high and original, of which low is not above high"
        )
    return scaling


class LayerPlan(NamedTuple):
    """What differs from layer to layer.

    Attributes:
        window: how many keys before and after itself a position sees; None: all.
        rotation: of its rotary positions.
    """

    window: tuple[int | None, int | None]
    rotation: Rotation


class ModernConfig(BodyConfig):
    """Sizes that every family has, and by class variables what a family is."""

    max_positions: Length = 8192
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    norm_eps: Epsilon = 1e-5
    """Epsilon of the norms."""

    rotary: ClassVar[bool] = True
    gated: ClassVar[bool] = True
    output_bias: ClassVar[bool] = False
    tasks_read_head: ClassVar[bool] = True
    task_activation: ClassVar[str] = ""
    separators: ClassVar[int] = 1

    # Whether norms are RMS norms, else LayerNorm without a bias.
    rms: ClassVar[bool] = True
    # Whether a norm stands before each branch.
    norms_before: ClassVar[bool] = True
    # Whether a norm stands after each branch, before it is added.
    norms_after: ClassVar[bool] = False
    # Whether the lowest layer's attention has the norm before it, too.
    first_norm: ClassVar[bool] = True
    # The norm of queries and keys: of each head by itself, or of all as a whole.
    query_norm: ClassVar[QueryNorm] = "none"
    # Whether queries, keys and values have a bias.
    projection_bias: ClassVar[bool] = False
    # The activation of feed-forward blocks.
    activation: ClassVar[Activation] = "silu"
    # Whether embeddings are normalised.
    embedding_norm: ClassVar[bool] = False
    # Whether a head has a dense layer, GELU and a norm after the final norm.
    dense_head: ClassVar[bool] = False
    # Whether embeddings are multiplied by the square root of the width.
    scaled_embeddings: ClassVar[bool] = False

    def make_body(self, head_depths: Sequence[int] = ()) -> Body:
        """Make a fresh ModernBody."""
        from ds_minimodel.models.modern.model import ModernBody

        return ModernBody(self, head_depths)

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalised."""
        return self.query_norm != "none"

    @property
    def products(self) -> BodyProducts:
        """The products that a pass through a body makes."""
        h = self.hidden_size
        queries = self.num_heads * self.head_width
        keys = self.num_key_heads * self.head_width
        output = 2 * queries * h + 6 * h * self.ffn_size
        layer = LayerProducts(
            key=4 * h * keys, query=2 * h * queries, output=output, pair=4 * queries
        )
        layers = tuple(
            layer._replace(window=self.layer(index).window) for index in range(self.num_layers)
        )
        return BodyProducts(layers, head=2 * h * h if self.dense_head else 0)

    @property
    def score_scale(self) -> float:
        """What the scores of attention are multiplied by."""
        return self.head_width**-0.5

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """{what: size} that the number of tensor-parallel ranks must divide."""
        sizes = {**super().split_sizes, "model.num_kv_heads": self.num_key_heads}
        if self.query_norm == "whole":
            # One norm over all heads cannot be divided. The key becomes a part of the message.
            sizes[f"a norm that model.kind {self.kind} has over all heads, of which there is"] = 1
        return sizes

    def layer(self, index: int) -> LayerPlan:
        """Return what layer `index`, from 0, has beside what all layers have."""
        raise NotImplementedError

    def sees_all(self, index: int) -> bool:
        """Return whether layer `index`, from 0, sees the whole sequence, not a window of it."""
        return self.layer(index).window[0] is None


class ModernBertConfig(ModernConfig):
    """ModernBERT (Warner et al. 2024); defaults: the base model's."""

    kind: Literal["modernbert"] = "modernbert"
    num_layers: Few = 22
    ffn_size: Size = 1152
    window: NonNegativeInt = 64
    """Tokens that a layer with a window sees on each side (`gemma3`: before)."""
    global_every: Few = 3
    """One of so many layers sees all: the first (`gemma3`: the last)."""
    global_base: RotaryBase = 160_000.0
    """Rotary base in layers that see all."""
    local_base: RotaryBase = 10_000.0
    """Rotary base in layers with a window."""

    output_bias: ClassVar[bool] = True
    rms: ClassVar[bool] = False
    # The lowest layer's input has just been normalised.
    first_norm: ClassVar[bool] = False
    activation: ClassVar[Activation] = "gelu"
    embedding_norm: ClassVar[bool] = True
    dense_head: ClassVar[bool] = True

    @property
    def period(self) -> int:
        """After how many layers their kinds repeat."""
        return self.global_every

    def layer(self, index: int) -> LayerPlan:
        """Return the plan of layer `index`: the first of each period sees all."""
        if index % self.global_every == 0:
            return LayerPlan((None, None), Rotation(self.global_base))
        return LayerPlan((self.window, self.window), Rotation(self.local_base))


class GroupedConfig(ModernConfig):
    """A family whose heads of queries share heads of keys and values.

    Its output matrix may differ from the embeddings.
    """

    num_kv_heads: Few | None = None
    """Heads of keys and values. Default: `num_heads`."""
    head_size: Few | None = None
    """Width of a head. Default: `hidden_size` / `num_heads`."""
    tie_output: bool = True
    """Whether the embeddings are also the output matrix."""
    rotary_base: RotaryBase = 10_000.0
    """Rotary base."""
    rotary_scaling: Annotated[
        tuple[Scale, ...], Field(strict=False), AfterValidator(_check_scaling)
    ] = ()
    """Llama 3.1's: factor, low and high frequency factors, original positions."""

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def tied(self) -> bool:
        """Whether a language's embeddings are its output projection too."""
        return self.tie_output

    def layer(self, index: int) -> LayerPlan:
        """Return the plan of a layer, which all share: both sides, or what is before, is seen."""
        window = (None, 0 if self.causal else None)
        return LayerPlan(window, Rotation(self.rotary_base, *self.rotary_scaling))


class EuroBertConfig(GroupedConfig):
    """EuroBERT (Boizard et al. 2025): Llama's layers seeing both sides; defaults as of 210m."""

    kind: Literal["eurobert"] = "eurobert"
    rotary_base: RotaryBase = 250_000.0
    tie_output: bool = False

    task_activation: ClassVar[str] = "gelu"


class DecoderConfig(GroupedConfig):
    """A family of decoders."""

    objective: ClassVar[str] = "causal-lm"
    causal: ClassVar[bool] = True


class LlamaConfig(DecoderConfig):
    """Llama 2 to 3.2 and SmolLM2; defaults: SmolLM2 135M's."""

    kind: Literal["llama"] = "llama"
    num_layers: Few = 30
    hidden_size: Size = 576
    num_heads: Few = 9
    num_kv_heads: Few | None = 3
    ffn_size: Size = 1536
    rotary_base: RotaryBase = 100_000.0


class Qwen2Config(DecoderConfig):
    """Qwen 2 and 2.5; defaults: Qwen 2.5 0.5B's."""

    kind: Literal["qwen2"] = "qwen2"
    num_layers: Few = 24
    hidden_size: Size = 896
    num_heads: Few = 14
    num_kv_heads: Few | None = 2
    ffn_size: Size = 4864
    max_positions: Length = 32_768
    norm_eps: Epsilon = 1e-6
    rotary_base: RotaryBase = 1_000_000.0

    projection_bias: ClassVar[bool] = True


class Qwen3Config(DecoderConfig):
    """Qwen 3; defaults: Qwen 3 0.6B's."""

    kind: Literal["qwen3"] = "qwen3"
    num_layers: Few = 28
    hidden_size: Size = 1024
    num_heads: Few = 16
    num_kv_heads: Few | None = 8
    head_size: Few | None = 128
    ffn_size: Size = 3072
    max_positions: Length = 40_960
    norm_eps: Epsilon = 1e-6
    rotary_base: RotaryBase = 1_000_000.0

    query_norm: ClassVar[QueryNorm] = "head"


class Olmo2Config(DecoderConfig):
    """OLMo 2; defaults: OLMo 2 1B's."""

    kind: Literal["olmo2"] = "olmo2"
    num_layers: Few = 16
    hidden_size: Size = 2048
    num_heads: Few = 16
    ffn_size: Size = 8192
    max_positions: Length = 4096
    norm_eps: Epsilon = 1e-6
    tie_output: bool = False
    rotary_base: RotaryBase = 500_000.0

    norms_before: ClassVar[bool] = False
    norms_after: ClassVar[bool] = True
    query_norm: ClassVar[QueryNorm] = "whole"


class Gemma3Config(DecoderConfig):
    """Gemma 3's text model; defaults: the 270m model's."""

    kind: Literal["gemma3"] = "gemma3"
    num_layers: Few = 18
    hidden_size: Size = 640
    num_heads: Few = 4
    num_kv_heads: Few | None = 1
    head_size: Few | None = 256
    ffn_size: Size = 2048
    max_positions: Length = 32_768
    norm_eps: Epsilon = 1e-6
    window: Few = 512
    global_every: Few = 6
    rotary_base: RotaryBase = 1_000_000.0
    local_base: RotaryBase = 10_000.0
    score_size: Few = 256
    """Attention scores are divided by its root."""

    norms_after: ClassVar[bool] = True
    query_norm: ClassVar[QueryNorm] = "head"
    activation: ClassVar[Activation] = "gelu_tanh"
    scaled_embeddings: ClassVar[bool] = True

    @property
    def score_scale(self) -> float:
        """What the scores of attention are multiplied by."""
        return self.score_size**-0.5

    @property
    def period(self) -> int:
        """After how many layers their kinds repeat."""
        return self.global_every

    def layer(self, index: int) -> LayerPlan:
        """Return the plan of layer `index`: the last of each period sees all before it."""
        if (index + 1) % self.global_every == 0:
            return super().layer(index)
        return LayerPlan((self.window - 1, 0), Rotation(self.local_base))


FAMILIES = (
    ModernBertConfig,
    EuroBertConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Olmo2Config,
    Gemma3Config,
)
