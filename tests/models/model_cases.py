"""A tiny architecture, random weights that hide nothing, batches with and without padding;
transformers' twins.
"""

import torch
from transformers import RobertaConfig

from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.hf.lazy import LazyTensors, lazy_entries
from ds_minimodel.hf.names.roberta import ROBERTA
from tests.small_models import PAD, roberta

VOCAB_SIZE = 40
LENGTHS = (11, 8, 5, 9)


def body_config(num_layers=3, dropout=0.0, attention_dropout=0.0):
    return roberta(num_layers, 16, 2, 24, 14, dropout, attention_dropout)


def randomise(module, seed=0):
    """Weights as large as a trained model's, biases and norms too: those of a fresh model hide
    mistakes.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            center = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.normal_(center, 0.3, generator=generator)
    return module


def mlm_batch(*, padded=True, seed=0):
    """A masked-LM batch as the data part makes it, 2 to 4 positions read in each row."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(LENGTHS if padded else (11,) * len(LENGTHS), dtype=torch.int32)
    tokens = torch.randint(4, VOCAB_SIZE, (len(LENGTHS), 11), generator=draw)
    tokens[torch.arange(11) >= lengths[:, None]] = PAD
    read = torch.zeros(len(LENGTHS), 4, dtype=torch.int64)
    targets = torch.full(read.shape, IGNORED)
    for row, length in enumerate(lengths.tolist()):
        count = 2 + row % 3
        read[row, :count] = torch.randperm(length, generator=draw)[:count].sort().values
        targets[row, :count] = torch.randint(VOCAB_SIZE, (count,), generator=draw)
    keys = torch.randint(-(2**31), 2**31 - 1, (len(LENGTHS),), generator=draw).to(torch.int32)
    batch = {
        "tokens": tokens,
        "lengths": lengths,
        "loss_positions": read,
        "targets": targets,
        "sample_keys": keys,
    }
    return batch if padded else {name: value for name, value in batch.items() if name != "lengths"}


def read_everywhere(batch):
    """The same batch for a model that computes every position: targets (B, S)."""
    targets = torch.full(batch["tokens"].shape, IGNORED)
    for row in range(len(targets)):
        used = batch["targets"][row] != IGNORED
        targets[row, batch["loss_positions"][row, used]] = batch["targets"][row, used]
    return without_read(batch, targets)


def without_read(batch, targets):
    """The same batch for a model that computes every position, with these targets."""
    return {
        **{name: value for name, value in batch.items() if name != "loss_positions"},
        "targets": targets,
    }


def classification_batch(*, padded=True):
    return {
        **mlm_batch(padded=padded),
        "loss_positions": torch.zeros(4, 1, dtype=torch.int64),
        "targets": torch.tensor([[2], [0], [1], [1]]),
    }


def qa_batch(*, padded=True):
    return without_read(mlm_batch(padded=padded), torch.tensor([[3, 7], [0, 0], [1, 4], [2, 2]]))


def rows(batch, which, width=None):
    """Some rows of a batch, cut or padded to `width` positions."""
    part = {name: value[which] for name, value in batch.items()}
    if width is not None:
        shape = part["tokens"].shape
        common = min(width, shape[1])
        for name, filler in (("tokens", PAD), ("targets", IGNORED)):
            if part[name].shape == shape:
                whole = torch.full((len(part[name]), width), filler)
                whole[:, :common] = part[name][:, :common]
                part[name] = whole
    return part


def losses_and_gradients(module, *batches):
    """Sum of a module's losses over batches, and the gradients of their total by parameter name."""
    module.zero_grad()
    total = sum(module(batch) for batch in batches)
    total.sum().backward()
    return total.detach(), {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def assert_same(got, expected, tolerance=1e-10):
    """Equality of (losses, gradients by name) up to `tolerance`, relative to each tensor's largest
    element.

    Or to 0.1: some gradients are zero but for rounding, such as those of the keys' biases.
    """
    assert got[1].keys() == expected[1].keys()
    found = {"losses": got[0], **got[1]}
    for name, reference in {"losses": expected[0], **expected[1]}.items():
        tensor = found[name]
        assert tensor.shape == reference.shape, name
        error = (tensor - reference).abs().max()
        assert error <= tolerance * max(reference.abs().max(), 0.1), f"{name}: off by {error:.1e}"


def as_theirs(tensors, config, head):
    """Our state dict, or gradients, under transformers' names. head: as of
    Architecture.language_model_head.
    """
    return dict(LazyTensors(ROBERTA[0].to_hf(lazy_entries(tensors), config, head)))


def twin(theirs, ours, head, **settings):
    """A RoBERTa of transformers' class `theirs` with the weights of our module, in the same dtype
    and mode.
    """
    config = ROBERTA[0].config_json(ours.body.config, len(ours.pack.tokens))
    config |= {"pad_token_id": PAD, "attn_implementation": "eager", **settings}
    model = theirs(RobertaConfig(**config)).to(ours.pack.tokens.dtype).train(ours.training)
    weights = as_theirs(ours.state_dict(), ours.body.config, head)
    assert {name for name, _ in model.named_parameters()} == weights.keys()
    model.load_state_dict(weights, strict=False)  # a tied output has two names
    return model


def attention_mask(batch):
    return (batch["tokens"] != PAD).long()


def assert_same_as_theirs(ours, batch, head, theirs, loss, tolerance=1e-10):
    """That our losses and gradients of a batch are those of the twin `theirs`, whose loss this
    is.
    """
    loss.backward()
    losses, gradients = losses_and_gradients(ours, batch)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    found = as_theirs(gradients, ours.body.config, head)
    for by_name in (expected, found):
        # Our module has no token types.
        del by_name["roberta.embeddings.token_type_embeddings.weight"]
    assert_same((losses, found), (loss.detach()[None], expected), tolerance)
