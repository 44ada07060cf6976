"""The same weights in Hugging Face's RoBERTa: parameter names, conversion, gradients under our names."""

import torch
from model_cases import body_config
from transformers import RobertaConfig

from ds_minimodel.hf.roberta import ROBERTA
from ds_minimodel.models import make_body
from tests.small_models import PAD


def names(num_layers, head_depth=None, task=()):
    """Our parameter -> Hugging Face's, which stacked along the first axis are ours.

    task: (our module, Hugging Face's module) of a task's head.
    """
    head = {} if head_depth is None else ROBERTA[0].language_model_head(head_depth)
    head |= dict(task)
    with torch.device("meta"):
        body = make_body(body_config(num_layers), () if head_depth is None else (head_depth,))
    ours = ["pack.tokens", "pack.bias", *(f"body.{name}" for name in body.state_dict())]
    ours += [f"{module}.{kind}" for module, _ in task for kind in ("weight", "bias")]
    return ROBERTA[0]._names(ours, head)


def twin(theirs, ours, found, **settings):
    """A model of Hugging Face's class `theirs` with the weights of our module, in the same dtype and mode."""
    num_layers = sum(name.endswith("qkv.weight") for name in found)
    config = ROBERTA[0].config_json(ours.body.config.with_layers(num_layers), len(ours.pack.tokens))
    config |= {"pad_token_id": PAD, "attn_implementation": "eager", **settings}
    model = theirs(RobertaConfig(**config)).to(ours.pack.tokens.dtype).train(ours.training)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        parameters.pop("roberta.embeddings.token_type_embeddings.weight").zero_()
        for name, tensor in ours.state_dict().items():
            if name in found:
                for part, chunk in zip(found[name], tensor.chunk(len(found[name])), strict=True):
                    parameters.pop(part).copy_(chunk)
    assert not parameters, f"without a counterpart: {list(parameters)}"
    return model


def gradients(model, found):
    """Gradients of a Hugging Face model under our names."""
    parameters = dict(model.named_parameters())
    return {name: torch.cat([parameters[part].grad for part in parts]) for name, parts in found.items()}


def attention_mask(batch):
    if "lengths" not in batch:
        return None
    return (torch.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]).long()
