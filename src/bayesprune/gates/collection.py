"""Finding the gates of a model."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bayesprune.errors import InputError
from bayesprune.gates.contract import Gate

_PARALLEL = (DataParallel, DistributedDataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of what ``torch.compile`` and torch's data parallel wrappers give, or the model itself.

    Watched by the modes that count and trace operators, a compiled model does not compile, and may never run again. Nor can wrappers that
    talk to other processes be followed or copied.
    """
    inside = model.module if isinstance(model, _PARALLEL) else getattr(model, "_orig_mod", model)
    return unwrapped(inside) if isinstance(inside, nn.Module) and inside is not model else model


def gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by name, in network order; in one that is compiled or distributed they are called as in the model inside.

    Raises:
        InputError: it is no model.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is an nn.Module, not {type(model).__name__}")
    found = [(name, module) for name, module in unwrapped(model).named_modules() if isinstance(module, Gate)]
    return dict(sorted(found, key=lambda item: item[1].position))


def require_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model, of which there must be some."""
    found = gates(model)
    if not found:
        raise InputError(f"{type(model).__name__} has no gates: put them in with bayesprune.sparsify(model, 'bb') first")
    return found


def divergences(found: Sequence[Gate]) -> list[Tensor]:
    """``kl`` of each of the gates, computed together where they are of one method that can do so."""
    if len({type(gate) for gate in found}) == 1:
        return type(found[0]).divergences(found)
    return [gate.kl() for gate in found]
