"""Finding the gates of a model."""

from torch import nn

from bayesprune.errors import InputError
from bayesprune.gates.contract import Gate


def gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by name, in network order."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, Gate)]
    return dict(sorted(found, key=lambda item: item[1].position))


def require_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model, of which there must be some."""
    found = gates(model)
    if not found:
        raise InputError(f"{type(model).__name__} has no gates: put them in with bayesprune.sparsify(model, 'bb') first")
    return found
