"""Running a model on its example."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, batch_size, call, tensors_in, with_batch_size, with_other_sizes, with_other_values
from bayesprune.graph.transformers import attention_written_out
from bayesprune.prediction import evaluating
from bayesprune.state import State, as_before


def run_example(model: nn.Module, example_inputs: ExampleInputs) -> Any:
    """What the model computes for the example, in evaluation mode and without gradients; whatever it writes into itself is undone.

    Raises:
        InputError: the model does not run on it.
    """
    with _watched(model, example_inputs) as state:
        return _result(model, example_inputs, state)


def run_watched(model: nn.Module, example_inputs: ExampleInputs) -> tuple[Any, tuple[str, ...]]:
    """What ``run_example`` gives, and the buffers that the model's code writes in evaluation mode.

    Raises:
        InputError: the model does not run on the example, or computes something else after it has written into itself.
    """
    with _watched(model, example_inputs) as state:
        result = _result(model, example_inputs, state)
        written = state.written()
        if not written:
            return result, ()
        others = with_other_values(example_inputs)
        sizes = [size for together, *_ in with_other_sizes(others) for size in (*together.smaller, *together.larger)]
        for inputs in (with_batch_size(others, batch_size(others) + 1), *sizes, others):
            with suppress(InputError):
                _result(model, inputs, state)
        later = _result(model, example_inputs, state)
    if _same(result, run_example(model, example_inputs)) and not _same(result, later):
        raise InputError(
            f"{type(model).__name__} does not compute the same twice in evaluation mode: it goes by what it wrote into "
            f"{', '.join(written)} in earlier calls, and a graph remembers nothing. Let it write there in training mode only, or switch "
            "its memory off, as use_cache=False does in some models"
        )
    buffers = dict(model.named_buffers())
    return result, tuple(name for name in written if name in buffers)


@contextmanager
def after_a_call(model: nn.Module, inputs: ExampleInputs) -> Iterator[bool]:
    """The model as a call with these inputs leaves it; whether it wrote anything into itself. Afterwards it is as before."""
    with _watched(model, inputs) as state:
        with suppress(InputError):
            _result(model, inputs, state)
        yield bool(state.written())


def not_updated(model: nn.Module, written: tuple[str, ...], successor: str) -> str:
    """What there is to say about buffers that the model's code writes, and what stands for the model does not."""
    return (
        f"{type(model).__name__} updates {', '.join(written)} when it is called, also in evaluation mode, and {successor} does not: where "
        "it reads them, it reads the values that they have now"
    )


def refuse_meta(model: nn.Module, example_inputs: ExampleInputs) -> None:
    """Refuse tensors without numbers."""
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers(), *tensors_in(example_inputs)]):
        raise InputError(
            "the model or the example is on the device 'meta', where nothing is computed: give both numbers, on another device"
        )


@contextmanager
def _watched(model: nn.Module, example_inputs: ExampleInputs) -> Iterator[State]:
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(f"{type(model).__name__} is TorchScript, which cannot be followed: give the nn.Module that it was made from")
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    for tensor in tensors_in(example_inputs):
        if len(devices) == 1 and tensor.device not in devices:
            raise InputError(f"the model is on {next(iter(devices))} but the example on {tensor.device}: move one of them with .to(device)")
    refuse_meta(model, example_inputs)
    with torch.no_grad(), evaluating(model), attention_written_out(), as_before(model) as state:
        yield state


def _result(model: nn.Module, example_inputs: ExampleInputs, state: State) -> Any:
    result = call(model, tree_map_only(Tensor, torch.clone, example_inputs))  # A layer may write into its input.
    return tree_map_only(Tensor, torch.clone, result) if state.written() else result  # It may be a buffer, which is to be as before.


def _same(result: Any, other: Any) -> bool:
    pairs = zip(tensors_in(result), tensors_in(other), strict=True)
    return all(a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
