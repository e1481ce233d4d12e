"""How a gate is put onto a layer, and how a layer picks the inputs that a gate leaves it.

Both become children of the layer and act through forward hooks, so the model keeps its class, its code and the names of its weights. The
hooks find them by their names: copies of the model run their own gates, and replacing the child replaces the gate.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.gates.contract import Gate


def put_on(layer: nn.Module, side: Literal["input", "output"], gate: Gate) -> None:
    """Let the gate multiply what goes into the layer, or what comes out of it."""
    name = f"{side}_gate"
    if hasattr(layer, name):
        raise InputError(f"{type(layer).__name__} has an attribute '{name}' already: give the model without gates")
    layer.add_module(name, gate)
    if side == "input":
        layer.register_forward_pre_hook(_gate_input)
    else:
        layer.register_forward_hook(_gate_output)


class InputPick(nn.Module):
    """Some of what arrives at a layer, by number along a dimension.

    Args:
        index: what to pick.
        arriving: how many there are to pick from.
        dim: along which dimension.
    """

    index: Tensor

    def __init__(self, index: Tensor, arriving: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("index", index)
        self.arriving, self.dim = arriving, dim

    def forward(self, x: Tensor) -> Tensor:
        there = x.ndim > (self.dim if self.dim >= 0 else -self.dim - 1)
        if not there or x.shape[self.dim] != self.arriving:  # More could be picked from too, and would be other inputs.
            raise InputError(f"a layer that picks from {self.arriving} inputs in dimension {self.dim} was given the shape {tuple(x.shape)}")
        return self.pick(x)

    def pick(self, x: Tensor) -> Tensor:
        """What is picked of a tensor of the right shape."""
        return torch.index_select(x, self.dim, self.index)

    def extra_repr(self) -> str:
        return f"{len(self.index)} of {self.arriving}"


INPUT_PICK = "input_pick"


def pick_inputs(layer: nn.Module, index: Tensor, arriving: int, dim: int) -> None:
    """Let a layer with a gate on its input pick what it reads, before the gate; in place of what it picked. See ``InputPick``."""
    if INPUT_PICK not in layer._modules:
        layer.register_forward_pre_hook(_pick_input, prepend=True)
    layer.add_module(INPUT_PICK, InputPick(index, arriving, dim))


def picked_inputs(layer: nn.Module) -> InputPick | None:
    """What a layer picks, if it does."""
    pick = layer._modules.get(INPUT_PICK)
    return pick if isinstance(pick, InputPick) else None


def without_gates(layer: nn.Module) -> nn.Module:
    """A copy of a layer, with the same tensors, that lacks what was put on it here. Hooks of others stay."""
    bare = type(layer).__new__(type(layer))  # Parametrised layers refuse copy.copy.
    bare.__dict__ = dict(layer.__dict__)
    bare.__dict__["_modules"] = {name: child for name, child in layer._modules.items() if not isinstance(child, (Gate, InputPick))}
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        kept = ((key, hook) for key, hook in getattr(layer, hooks).items() if hook not in _OWN_HOOKS)
        bare.__dict__[hooks] = OrderedDict(kept)
    return bare


@contextmanager
def acting_as(forwards: Mapping[Gate, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Let each of these gates compute something else for a while."""
    for gate, forward in forwards.items():
        gate.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for gate in forwards:
            del gate.forward


def bypassed(model: nn.Module) -> AbstractContextManager[None]:
    """Let every gate of a model pass on what it is given."""
    return acting_as({module: _passed_on for module in model.modules() if isinstance(module, Gate)})


def _passed_on(x: Tensor) -> Tensor:
    return x


def has_other_hooks(layer: nn.Module) -> bool:
    """Whether something besides gates hooks into the layer's calls."""
    return any(hook not in _OWN_HOOKS for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()))


def _gate_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    _require_positional(layer, inputs)
    return (layer.input_gate(inputs[0]), *inputs[1:])  # type: ignore[operator]


def _gate_output(layer: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return layer.output_gate(output)  # type: ignore[operator, no-any-return]


def _pick_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    _require_positional(layer, inputs)
    return (layer.input_pick(inputs[0]), *inputs[1:])  # type: ignore[operator]


def _require_positional(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    if not inputs:
        raise InputError(f"{type(layer).__name__} with a gate on its input must be called with a positional argument")


_OWN_HOOKS = (_gate_input, _gate_output, _pick_input)
