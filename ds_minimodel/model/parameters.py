"""A module's parameters by name: what trains, and how tensors get in and out."""


def train_only(module, trains):
    """Freeze every parameter of `module` but those for whose name `trains(name)` holds."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trains(name))


def load_into(module, tensors, prefix=""):
    """Copy tensors into the parameters of those names (with `prefix` before them); each must exist."""
    result = module.load_state_dict({prefix + name: tensor for name, tensor in tensors.items()}, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys


def below(tensors, prefix):
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
