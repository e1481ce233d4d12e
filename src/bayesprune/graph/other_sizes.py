"""Inputs of other sizes than the example's: which of them a model takes, and what it computes for them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn

from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, batch_size, tensors_in, with_batch_size, with_other_sizes
from bayesprune.graph.calls import run_example

Shapes: TypeAlias = tuple[torch.Size, ...]


@dataclass(frozen=True)
class Trial:
    """Inputs that a model takes, and what it computes for them."""

    inputs: ExampleInputs
    result: Any


def in_other_sizes(model: nn.Module, example_inputs: ExampleInputs, expected: Any) -> list[Trial]:
    """Inputs of other sizes that the model takes: one of every kind, and larger ones where those are smaller.

    A branch of the code may lie on either side of the example's size.

    Args:
        model: what to try.
        example_inputs: inputs that it runs on.
        expected: what it computes for them.
    """
    found = _tried(model, example_inputs, expected, with_batch_size(example_inputs, 2))
    if not found and batch_size(example_inputs) != 2 and run_trial(model, with_batch_size(example_inputs, 2)) is None:
        return _tried(model, example_inputs, expected, example_inputs)  # A model for this batch size only.
    return found


def _tried(model: nn.Module, example_inputs: ExampleInputs, expected: Any, base: ExampleInputs) -> list[Trial]:
    taken = _taker(model, example_inputs, expected)
    others: dict[Shapes, Trial] = {}
    larger: dict[Shapes, Trial] = {}
    for together, *apart in with_other_sizes(base):
        ways = [[*together, *apart[0]], *apart[1:]] if apart else [together]
        for way in ways:
            _add_first(others, taken, (inputs for alternatives in way for inputs in alternatives))
        if not _add_first(larger, taken, together.larger):
            for part in apart:
                _add_first(larger, taken, part.larger)
    return list((others | larger).values())


def _add_first(found: dict[Shapes, Trial], taken: Callable[[ExampleInputs], Trial | None], alternatives: Iterable[ExampleInputs]) -> bool:
    """Add the first of these inputs that the model takes."""
    for inputs in alternatives:
        trial = None if _shapes(inputs) in found else taken(inputs)
        if trial is not None:
            found[_shapes(inputs)] = trial
            return True
    return False


def _taker(model: nn.Module, example_inputs: ExampleInputs, expected: Any) -> Callable[[ExampleInputs], Trial | None]:
    """A function that tries inputs, those of the same shapes once.

    A model that views its activations as rows of a fixed length runs on anything, but what are samples then it takes apart: it does not
    take such inputs.
    """
    known: dict[Shapes, Trial | None] = {}

    @cache
    def of_the_batch() -> list[bool]:
        """Which results have a row for every sample: two batch sizes tell, because any other size may be that of one batch by chance."""
        size = batch_size(example_inputs)
        another = with_batch_size(example_inputs, 2 if size != 2 else 3)
        trial = run_trial(model, another)
        rows = _rows(expected, size)
        there = rows if trial is None else _rows(trial.result, batch_size(another))
        return [a and b for a, b in zip(rows, there, strict=True)] if len(rows) == len(there) else rows

    def taken(inputs: ExampleInputs) -> Trial | None:
        shapes = _shapes(inputs)
        if shapes not in known:
            trial = run_trial(model, inputs)
            rows = [] if trial is None else _rows(trial.result, batch_size(inputs))
            known[shapes] = trial if all(rows) or _covers(rows, of_the_batch()) else None
        return known[shapes]

    return taken


def run_trial(model: nn.Module, inputs: ExampleInputs) -> Trial | None:
    """What a model computes for inputs; None if it does not take them."""
    try:
        return Trial(inputs, run_example(model, inputs))
    except InputError:
        return None


def _covers(rows: list[bool], wanted: list[bool]) -> bool:
    return len(rows) == len(wanted) and all(got or not needed for got, needed in zip(rows, wanted, strict=True))


def _rows(result: Any, size: int) -> list[bool]:
    """Which tensors have as many rows."""
    return [tensor.shape[:1] == (size,) for tensor in tensors_in(result)]


def _shapes(inputs: ExampleInputs) -> Shapes:
    return tuple(tensor.shape for tensor in tensors_in(inputs))
