"""A kind of body, an objective and a system that are declared here and nowhere else, for whoever
imports this.

The body normalises before a branch, by the root mean square, knows positions as sinusoids that are
added, and has no kernels of its own; the objective restores swapped neighbours. `main` is for the
forks that begin here.
"""

from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from ds_minimodel import ops
from ds_minimodel.cli.main import main  # noqa: F401
from ds_minimodel.common.config import Section
from ds_minimodel.common.random import draws, stream_key
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.config.systems import SYSTEMS, System
from ds_minimodel.models import BODIES
from ds_minimodel.models.body import Body, Layer, Linear, Projection, init_weights
from ds_minimodel.models.kind import BodyConfig, BodyProducts, LayerProducts
from ds_minimodel.models.objectives import OBJECTIVES, TextObjective

# --- A kind of body ---


class ToyConfig(BodyConfig):
    kind: Literal["toy"] = "toy"
    longest_wave: float = 100.0
    objective: ClassVar[str] = "unswap"

    def make_body(self, head_depths=()):
        return ToyBody(self, head_depths)

    @property
    def products(self):
        h = self.hidden_size
        f = self.ffn_size
        layer = LayerProducts(
            key=4 * h * h, query=2 * h * h, output=2 * h * h + 4 * h * f, pair=4 * h
        )
        return BodyProducts((layer,) * self.num_layers, head=0)


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


class ToyLayer(Layer):
    def __init__(self, config, index):
        super().__init__(config, index)
        self.attention_norm = Norm(config.hidden_size)
        self.ffn_norm = Norm(config.hidden_size)
        self.qkv = Projection(config, self.sites.heads)
        self.attention_out = Linear(config.hidden_size, config.hidden_size)
        self.ffn_in = Linear(config.hidden_size, config.ffn_size)
        self.ffn_out = Linear(config.ffn_size, config.hidden_size)

    def before_attention(self, x):
        return self.attention_norm(x)

    def attend(self, given):
        projected, queries, _, lengths, p, row_keys = given
        return ops.attention(projected, self.qkv.num_heads, lengths, p, row_keys, queries)

    def activate(self, inner):
        return F.relu(inner)

    def join(self, x, attended, rows):
        x = x + rows.drop(attended, self.sites.attention_out)
        return x + rows.drop(self.feed_forward(self.ffn_norm(x)), self.sites.ffn_out)


class ToyBody(Body):
    def __init__(self, config, head_depths=()):
        super().__init__(config, head_depths)
        self.layers = nn.ModuleList(ToyLayer(config, index) for index in range(config.num_layers))
        self.heads = nn.ModuleDict({str(depth): Norm(config.hidden_size) for depth in head_depths})
        self.apply(init_weights)

    def embed(self, embedded, positions, second):
        waves = (
            torch.logspace(0, 2, self.config.hidden_size, device=embedded.device)
            * self.config.longest_wave
            / 100
        )
        return embedded + 0.02 * (positions[..., None] / waves).sin().to(embedded.dtype)


# --- An objective ---


class Unswap(TextObjective):
    """A quarter of the neighbours change places; the body says what stood where."""

    name = "unswap"
    settings = Section

    def batch(self, samples, vocabulary, settings):
        tokens, lengths, keys, *_ = samples
        count = max(1, tokens.shape[1] // 8)
        read = 2 * (draws(stream_key(keys, 0x30000), 0, count) % (tokens.shape[1] // 2)).astype(
            "int64"
        )
        read.sort(axis=1)
        inside = (read + 1 < lengths[:, None]) & (read != -1)
        inside[:, 1:] &= read[:, 1:] != read[:, :-1]
        rows, slots = inside.nonzero()
        places = read[rows, slots]
        targets = tokens[:, :count] * 0 + IGNORED
        targets[rows, slots] = tokens[rows, places]
        tokens[rows, places] = tokens[rows, places + 1]
        tokens[rows, places + 1] = targets[rows, slots]
        return {"tokens": tokens, "loss_positions": read, "targets": targets, "count": len(rows)}

    def share_read(self, settings):
        return 1 / 8

    def shapes(self, settings, seq_length):
        return {
            "tokens": (seq_length,),
            "loss_positions": (seq_length // 8,),
            "targets": (seq_length // 8,),
        }


BODIES["toy"] = ToyConfig
OBJECTIVES["unswap"] = Unswap()

# MiniPost's layers over MiniJoint's body.
SYSTEMS["jointpost"] = System(
    "jointpost", "JointPost", body="minijoint", builds_mini=True, color="#CC79A7", marker="P"
)
