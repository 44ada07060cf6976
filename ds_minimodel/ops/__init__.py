"""The operators that the model is made of: torch references, and compiled kernels where built.

Functions take and return plain tensors; gradients, tracing and the choice of the implementation are
torch's dispatcher's work (library.py).
"""

from ds_minimodel.ops.attention import attention
from ds_minimodel.ops.cross_entropy import linear_cross_entropy, linear_divergence, token_losses
from ds_minimodel.ops.dropout import dropout, row_keys
from ds_minimodel.ops.embedding import embedding
from ds_minimodel.ops.gated import gated
from ds_minimodel.ops.gelu import bias_gelu
from ds_minimodel.ops.loading import LIBRARIES, backend, device_type, load_kernels, meta_stands_for
from ds_minimodel.ops.matmul import ALL, linear, low_rank_linear, rows_for_few_shapes
from ds_minimodel.ops.norm import residual_norm
from ds_minimodel.ops.rotary import rotary, rotary_table
from ds_minimodel.ops.softmax import masked_softmax
from ds_minimodel.ops.window import Window, window_attention

# The imports above have defined the operators, which the libraries implement.
for _device in LIBRARIES:
    load_kernels(_device)

__all__ = [
    "ALL",
    "Window",
    "attention",
    "backend",
    "bias_gelu",
    "device_type",
    "dropout",
    "embedding",
    "gated",
    "linear",
    "linear_cross_entropy",
    "linear_divergence",
    "low_rank_linear",
    "masked_softmax",
    "meta_stands_for",
    "residual_norm",
    "rotary",
    "rotary_table",
    "row_keys",
    "rows_for_few_shapes",
    "token_losses",
    "window_attention",
]
