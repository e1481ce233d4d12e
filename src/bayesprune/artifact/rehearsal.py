"""Going through a network once without memory, to see that its parts fit and that nothing in it grows out of bounds."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bayesprune.artifact.network import LoadedNetwork
from bayesprune.artifact.values import MalformedError, TensorShape
from bayesprune.cost.activations import ActivationMemory
from bayesprune.errors import InputError

_MOST_PARTS = 65_536
_BYTES_AT_ONCE = 16
"""For each element that a tensor may have: room for four of the largest, of single precision, at one time."""
_OPERATIONS_PER_STEP = 50
_SPARE_OPERATIONS = 20_000


def rehearse(network: LoadedNetwork, max_elements: int) -> None:
    """Run a network without memory on inputs of the shapes it was saved with.

    Raises:
        MalformedError: it does not run, or makes a tensor with more elements than allowed, or several that take too much together.
    """
    examples = [_without_memory(example, max_elements) for example in network.blueprint.examples]
    limit = _SPARE_OPERATIONS + _OPERATIONS_PER_STEP * len(network.blueprint.program.steps)
    memory = ActivationMemory()
    try:
        with torch.no_grad(), _recurrence_skipped(network), memory, _Bounded(max_elements, limit), _FewParts():
            network(*examples)
    except InputError as error:
        cause = error.__cause__
        raise MalformedError(str(cause) if isinstance(cause, MalformedError) else str(error)) from error
    if memory.peak > _BYTES_AT_ONCE * max_elements:
        raise MalformedError(
            f"the network needs {memory.peak >> 20} MB at one time, more than {_BYTES_AT_ONCE} bytes for each of max_elements: "
            "if you trust the file, raise max_elements"
        )


class _Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that make a tensor with too many elements, or too many tensors."""

    def __init__(self, max_elements: int, max_operations: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.max_elements, self.operations_left = max_elements, max_operations

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        self.operations_left -= 1
        if self.operations_left < 0:
            raise MalformedError("the network takes more operations than one of its length should")
        if func in _SPLITTERS and _parts(func, *args, **kwargs) > _MOST_PARTS:
            raise MalformedError(f"a tensor is split into more than {_MOST_PARTS} parts")
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.numel() > self.max_elements:
                raise MalformedError(
                    f"the network makes a tensor of shape {tuple(leaf.shape)}, with more than {self.max_elements} elements: "
                    "if you trust the file, raise max_elements"
                )
        return result


class _FewParts(TorchFunctionMode):
    """Refuses to split a tensor into very many parts by their number: torch would make room for all of them first."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor_split and any(isinstance(value, int) and value > _MOST_PARTS for value in (*args, *kwargs.values())):
            raise MalformedError(f"a tensor is split into more than {_MOST_PARTS} parts")
        return func(*args, **kwargs)


_SPLITTERS = (torch.ops.aten.unbind.int, torch.ops.aten.split.Tensor)


def _parts(func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> float:
    """How many tensors a split would make."""
    if func is torch.ops.aten.split.Tensor:
        size, dim = (*args, kwargs.get("dim", 0))[:2]
        return float(tensor.shape[dim] / max(size, 1))
    return float(tensor.shape[args[0] if args else kwargs.get("dim", 0)])


def _without_memory(example: Any, max_elements: int) -> Any:
    if isinstance(example, TensorShape):
        if math.prod(example.shape) > max_elements:
            raise MalformedError(f"an input of shape {example.shape} has more than {max_elements} elements")
        return torch.empty(example.shape, dtype=example.dtype, device="meta")
    if isinstance(example, dict):
        return {key: _without_memory(each, max_elements) for key, each in example.items()}
    if isinstance(example, (tuple, list)):
        return type(example)(_without_memory(each, max_elements) for each in example)
    return example


@contextmanager
def _recurrence_skipped(network: nn.Module) -> Iterator[None]:
    """Let recurrent layers say the shape of their results at once, instead of going through the sequence."""
    recurrent = [module for module in network.modules() if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module.forward = partial(_recurrent_shapes, module)
    try:
        yield
    finally:
        for module in recurrent:
            del module.forward


def _recurrent_shapes(layer: nn.RNNBase, input: Tensor, hx: Any = None) -> Any:  # noqa: A002, ARG001
    """What a recurrent layer returns; it takes what ``forward`` takes, under the same names."""
    x = input
    if x.ndim not in (2, 3) or x.shape[-1] != layer.input_size:
        raise ValueError(f"a recurrent layer over {layer.input_size} features was given an input of shape {tuple(x.shape)}")
    directions = 2 if layer.bidirectional else 1
    outputs = layer.proj_size or layer.hidden_size
    batch = () if x.ndim == 2 else (x.shape[0 if layer.batch_first else 1],)
    result = x.new_empty(*x.shape[:-1], directions * outputs)
    hidden = x.new_empty(directions * layer.num_layers, *batch, outputs)
    if layer.mode != "LSTM":
        return result, hidden
    return result, (hidden, x.new_empty(directions * layer.num_layers, *batch, layer.hidden_size))
