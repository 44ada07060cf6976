"""Initialisation of a target language's embeddings (step 2) from those of the source.

target, source: the two vocabularies; a special token is shared where both have it, however they
spell it. pack: the source pack's tensors: tokens (V, H), and where its body has them output (V, H)
and bias (V). An output matrix or bias goes with the embeddings as more columns: what is copied or
combined takes them along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.tokenizers.alignment import Mixtures

# A pack's tensors: tokens (V, H), output (V, H), bias (V).
Pack = Mapping[str, Tensor]
# The tensors of a first pack, with the source's names.
Tensors = dict[str, Tensor]

# Columns whose mean and deviation are computed at a time; rows that are mixed at a time.
_CHUNK = 1024


@dataclass(frozen=True)
class Pieces:
    """A vocabulary, and its pieces as strings in the order of the ids."""

    vocabulary: Vocabulary
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.strings)


def random(target: Pieces, pack: Pack, seed: int) -> Tensors:
    """Draw all rows from N(0, 0.02), special tokens too (step 2 of language-model-plasticity)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.zeros(len(target), *pack[name].shape[1:]) for name in _in_order(pack)}
    for name, tensor in tensors.items():
        if name != "bias":
            tensor.normal_(0, INIT_STD, generator=generator)
    zero_padding_row(tensors["tokens"], target.vocabulary)
    return tensors


def overlap(target: Pieces, source: Pieces, pack: Pack, seed: int) -> Tensors:
    """Copy the rows of pieces that the source has too, and draw the others from N(0, 0.02).

    The paper has it in footnote 1.
    """
    tensors = random(target, pack, seed)
    target_ids, source_ids = _shared(target, source)
    for name, tensor in tensors.items():
        tensor[target_ids] = pack[name][source_ids]
    zero_padding_row(tensors["tokens"], target.vocabulary)
    return tensors


def pieces(
    target: Pieces, source: Pieces, pack: Pack, parts: Sequence[Sequence[int]], seed: int
) -> Tensors:
    """Make each row the mean of the source's rows of its parts.

    Special tokens are copied; a piece of no parts is drawn from the source's mean and deviation.

    Args:
        target: the new vocabulary.
        source: the source's.
        pack: the source pack's tensors.
        parts: for each piece the ids by which the source's tokenizer cuts it.
        seed: of what is drawn.
    """
    rows = _drawn(len(target), pack, num_source=len(source), seed=seed)
    for id, ids in enumerate(parts):
        if ids:
            rows[id] = _rows(pack, [*ids]).mean(0)
    special = _shared_special(target, source)
    rows[[*special]] = _rows(pack, [*special.values()])
    return _tensors_of(rows, pack, target)


def aligned(
    target: Pieces,
    source: Pieces,
    pack: Pack,
    parts: Sequence[Sequence[int]],
    mixed: Mixtures,
    seed: int,
) -> Tensors:
    """Make each row the weighted mean of the source's rows that pairs align its piece to.

    It is scaled to the mean of their norms in each tensor, since a mean of several is shorter than
    each. Pieces that the source has too are copied. Those that no pair aligns are as of `pieces`.

    Args:
        target: the new vocabulary.
        source: the source's.
        pack: the source pack's tensors.
        parts: as of `pieces`.
        mixed: what each piece of the target is mixed of.
        seed: of what is drawn.
    """
    tensors = pieces(target, source, pack=pack, parts=parts, seed=seed)
    # Of target_ids[i], entries starts[i] … starts[i + 1] of source_ids and weight are the mixture.
    source_ids = torch.from_numpy(mixed.source)
    weight = torch.from_numpy(mixed.weight)
    starts = torch.from_numpy(mixed.starts)
    target_ids = torch.from_numpy(mixed.target)
    for name, tensor in tensors.items():
        table = _as_columns(pack[name])
        for first in range(0, len(target_ids), _CHUNK):
            bounds = starts[first : first + _CHUNK + 1]
            used = slice(int(bounds[0]), int(bounds[-1]))
            sizes = bounds.diff()
            rows = table[source_ids[used]].double()
            mean = torch.segment_reduce(rows * weight[used, None], "sum", lengths=sizes)
            if name != "bias":
                norms = torch.segment_reduce(rows.norm(dim=1), "mean", lengths=sizes)
                mean *= (norms / mean.norm(dim=1).clamp(min=1e-12))[:, None]
            _as_columns(tensor)[target_ids[first : first + _CHUNK]] = mean.to(tensor.dtype)
    target_ids, source_ids = _shared(target, source)
    for name, tensor in tensors.items():
        tensor[target_ids] = pack[name][source_ids].to(tensor.dtype)
    zero_padding_row(tensors["tokens"], target.vocabulary)
    return tensors


def _shared(target: Pieces, source: Pieces) -> tuple[Tensor, Tensor]:
    """Return the pieces and special tokens that both have: their ids in the target, in the source.

    A string that is special in one of them alone is no shared piece.
    """
    special = {*target.vocabulary.special_ids}
    source_special = {*source.vocabulary.special_ids}
    source_ids = {piece: id for id, piece in enumerate(source.strings) if id not in source_special}
    shared = {
        id: source_ids[piece]
        for id, piece in enumerate(target.strings)
        if id not in special and piece in source_ids
    }
    shared |= _shared_special(target, source)
    ids = torch.tensor(sorted(shared.items()), dtype=torch.int64).reshape(-1, 2)
    return ids[:, 0], ids[:, 1]


def _shared_special(target: Pieces, source: Pieces) -> dict[int, int]:
    """Return {id in the target: id in the source} of the special tokens that both have."""
    source_ids = source.vocabulary.special
    return {
        id: source_ids[role] for role, id in target.vocabulary.special.items() if role in source_ids
    }


def _in_order(pack: Pack) -> list[str]:
    """Return the names of a pack's tensors in the order in which they stand side by side."""
    return [name for name in ("tokens", "output", "bias") if name in pack]


def _rows(pack: Pack, ids: list[int] | slice) -> Tensor:
    """Return all that the pack has of these ids, side by side (ids, columns), fp32."""
    return torch.cat([_as_columns(pack[name])[ids].float() for name in _in_order(pack)], 1)


def _as_columns(tensor: Tensor) -> Tensor:
    """Return a bias (V,) as one column, and other tensors (V, H) as they are."""
    return tensor if tensor.dim() == 2 else tensor[:, None]


def _drawn(num_pieces: int, pack: Pack, num_source: int, seed: int) -> Tensor:
    """Draw rows from the mean and deviation of each column of the first rows of `pack`.

    Columns are widened in blocks: tables of an 8B take 2 GB in bf16, and 4 in fp32.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = [_as_columns(pack[name])[:num_source] for name in _in_order(pack)]
    blocks = [block for table in tables for block in table.split(_CHUNK, 1)]
    mean = torch.cat([block.float().mean(0) for block in blocks])
    std = torch.cat([block.float().std(0) for block in blocks])
    return mean + std * torch.randn(num_pieces, len(mean), generator=generator)


def zero_padding_row(tokens: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Set the padding token's row of `tokens` (V, H), where there is one, to zero in place.

    Returns:
        The same table.
    """
    if vocabulary.pad is not None:
        with torch.no_grad():
            tokens[vocabulary.pad] = 0
    return tokens


def _tensors_of(rows: Tensor, pack: Pack, target: Pieces) -> Tensors:
    """Return the tensors, as `pack` has them, of `rows`."""
    names = _in_order(pack)
    parts = rows.split([pack[name][0].numel() for name in names], 1)
    tensors = {
        name: part.reshape(-1, *pack[name].shape[1:]).clone()
        for name, part in zip(names, parts, strict=True)
    }
    zero_padding_row(tensors["tokens"], target.vocabulary)
    return tensors
