"""Example inputs of any model: a tensor, a tuple of positional arguments or a dictionary of keyword arguments."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bayesprune.errors import InputError, first_line

ExampleInputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]
_FEW_ELEMENTS = 2**17
"""Up to so many elements inputs are doubled in size; larger ones grow by half first, for the time that a model takes with them."""


def call(model: nn.Module, example_inputs: ExampleInputs) -> Any:
    """What the model computes from the inputs.

    Raises:
        InputError: the model does not run on them.
    """
    args, kwargs = arguments(example_inputs)
    try:
        return model(*args, **kwargs)
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{list(x.shape)} {x.dtype} on {x.device}" for x in tensors_in(example_inputs)) or "no tensors"
        raise InputError(
            f"{type(model).__name__} does not run on example_inputs ({given}): {first_line(error)}. Give inputs that it accepts, on its "
            "device and of its dtype: a tensor, a tuple of positional arguments or a dictionary of keyword arguments"
        ) from error


def arguments(example_inputs: ExampleInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments.

    Raises:
        InputError: the inputs are of no such form.
    """
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, tuple):
        return example_inputs, {}
    if isinstance(example_inputs, Mapping) and all(isinstance(name, str) for name in example_inputs):
        return (), dict(example_inputs)
    raise InputError(
        "example_inputs is a tensor, a tuple of positional arguments or a dictionary of keyword arguments, "
        f"not {type(example_inputs).__name__}; a model that takes a list or a dictionary as its only argument gets it as (argument,), and "
        "an array becomes a tensor with torch.as_tensor"
    )


def tensors_in(nest: Any) -> list[Tensor]:
    """The tensors among arguments or results, those inside containers and dataclasses included, in order."""
    found: list[Tensor] = []
    for leaf in tree_leaves(dict(nest) if isinstance(nest, Mapping) else nest):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_record(leaf):
            found += tensors_in(vars(leaf))
    return found


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass, in which torch does not look for tensors by itself."""
    return is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def batch_size(example_inputs: ExampleInputs) -> int:
    """The size of dimension 0 of the first tensor that has one; 1 if none has.

    Raises:
        InputError: the batch is empty.
    """
    arguments(example_inputs)
    size = next((tensor.shape[0] for tensor in tensors_in(example_inputs) if tensor.ndim > 0), 1)
    if size == 0:
        raise InputError("example_inputs is an empty batch: give at least one input")
    return size


def with_batch_size(example_inputs: ExampleInputs, size: int) -> ExampleInputs:
    """The inputs repeated or cut to a batch of another size.

    Tensors whose dimension 0 is as large as the batch belong to it; any other, such as an attention mask, stays as it is.
    """
    now = batch_size(example_inputs)
    if now == size:
        return example_inputs

    def resized(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != now:
            return tensor
        return tensor.index_select(0, torch.arange(size, device=tensor.device) % now)

    args, kwargs = arguments(example_inputs)
    changed: ExampleInputs = tree_map_only(Tensor, resized, kwargs or args)
    return changed


def with_own_memory(example_inputs: ExampleInputs) -> ExampleInputs:
    """The inputs, each in memory of its own.

    Tracers and exporters take tensors that are the same memory for one: a tensor that is given twice, or one that the model holds too.
    """
    args, kwargs = arguments(example_inputs)
    with torch.no_grad():
        if isinstance(example_inputs, Tensor):
            return example_inputs.clone()
        own: ExampleInputs = tree_map_only(Tensor, torch.clone, kwargs or args)
    return own


def with_other_values(example_inputs: ExampleInputs, *, whole_numbers: bool = True) -> ExampleInputs:
    """Inputs like these with other numbers, drawn for each tensor by itself: equal tensors become different ones.

    Args:
        example_inputs: what to change; the result is always the same.
        whole_numbers: whether numbers that are not floating-point, such as tokens and masks, change too: they are drawn from those there.
    """
    generator = torch.Generator().manual_seed(0)

    def other(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.device, leaf.dtype)
            return -0.7 * leaf + 0.3 * noise * (leaf.std() if leaf.numel() > 1 else 1.0)
        if not whole_numbers or leaf.numel() == 0:
            return leaf
        return leaf.flatten()[torch.randint(leaf.numel(), leaf.shape, generator=generator).to(leaf.device)]

    args, kwargs = arguments(example_inputs)
    changed: ExampleInputs = tree_map_only(Tensor, other, kwargs or args)
    return changed


class Resized(NamedTuple):
    """Inputs with some dimensions changed: alternatives, of which one is enough in either direction."""

    smaller: list[ExampleInputs]
    larger: list[ExampleInputs]


def with_other_sizes(example_inputs: ExampleInputs) -> Iterator[list[Resized]]:
    """The inputs in other sizes than that of the batch: shorter and longer sequences, smaller and larger images.

    Dimensions of one size, in all tensors, change together, because they often mean the same; then only those at one place of the shape,
    such as all heights without the widths. Every item is about one size: first all its dimensions together, then, if they are at several
    places, those of each place, the last one first. Which of them a model takes only the model knows.
    """
    now = batch_size(example_inputs)
    args, kwargs = arguments(example_inputs)
    leaves, structure = tree_flatten(kwargs or args)

    def in_size(places: list[tuple[int, int]], size: int, other: int) -> ExampleInputs:
        changed = list(leaves)
        for position, dim in places:
            index = torch.arange(other, device=leaves[position].device) % size
            changed[position] = changed[position].index_select(dim, index)
        inputs: ExampleInputs = tree_unflatten(changed, structure)
        return inputs

    def resized(places: list[tuple[int, int]], size: int) -> Resized:
        elements: dict[int, int] = {position: leaves[position].numel() for position, _ in places}
        for position, _ in places:
            elements[position] *= 2
        doubled_first = sum(elements.values()) <= _FEW_ELEMENTS
        fewer = [] if size == 1 else [size // 2 if size % 2 == 0 else size - 1]
        more = dict.fromkeys((2 * size, _half_as_much_again(size)) if doubled_first else (_half_as_much_again(size), 2 * size))
        return Resized([in_size(places, size, other) for other in fewer], [in_size(places, size, other) for other in more])

    places = [
        (position, dim)
        for position, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor)
        for dim, size in enumerate(leaf.shape)
        if size > 0 and (dim > 0 or size != now)
    ]
    for size in dict.fromkeys(leaves[position].shape[dim] for position, dim in places):
        group = [(position, dim) for position, dim in places if leaves[position].shape[dim] == size]
        *apart, last = [[place for place in group if place[1] == dim] for dim in dict.fromkeys(dim for _, dim in group)]
        yield [resized(part, size) for part in (group, *((last, *apart) if apart else ()))]


def _half_as_much_again(size: int) -> int:
    """About 3/2 of a size, divisible by the power of two that it is divisible by, up to a quarter of it: strides and patches fit still."""
    step = max(1, size & -size)
    while step > max(1, size // 4):
        step //= 2
    return size + step * max(1, size // 2 // step)
