"""Which parts of a model are in training mode while it is trained."""

from collections.abc import Collection

from torch import nn

from bayesprune.gates import unwrapped


def parts_at_rest(model: nn.Module) -> frozenset[str]:
    """The modules, by path, that are in evaluation mode and frozen, and what is in evaluation mode inside them: they stay in it.

    Of a model that is compiled or distributed, paths are those of the model inside.
    """
    found: set[str] = set()
    for name, module in unwrapped(model).named_modules():
        parameters = list(module.parameters())
        inside = bool(name) and name.rpartition(".")[0] in found
        if not module.training and (parameters or inside) and not any(parameter.requires_grad for parameter in parameters):
            found.add(name)
    return frozenset(found)


def start_training(model: nn.Module, resting: Collection[str]) -> None:
    """Put a model into training mode, all but these parts."""
    model.train()
    for name, module in unwrapped(model).named_modules():
        if name in resting:
            module.training = False
