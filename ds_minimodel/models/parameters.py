"""Parameters of a module by name: which of them train, and copying tensors in and out."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

Tensors = dict[str, Tensor]


def train_only(module: nn.Module, trains: Callable[[str], bool]) -> None:
    """Freeze every parameter of `module` but those for whose name `trains(name)` holds."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trains(name))


def load_into(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copy tensors into the parameters of those names (with `prefix` before them); each must exist."""
    result = module.load_state_dict({prefix + name: tensor for name, tensor in tensors.items()}, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
