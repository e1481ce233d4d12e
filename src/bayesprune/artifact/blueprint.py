"""A network as data: what it is called with, what it computes step by step, and which layers and tensors it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from bayesprune.artifact.values import references

StepKind = Literal["layer", "tensor", "call", "number"]


@dataclass(frozen=True)
class Step:
    """One step of the computation.

    Attributes:
        name: what later steps call its result.
        kind: a call of a layer or of a function of the vocabulary, a tensor that the network holds, or arithmetic on sizes.
        target: the path of the layer or tensor, or the name of the function.
        args: positional arguments; results of earlier steps are references.
        kwargs: keyword arguments.
    """

    name: str
    kind: StepKind
    target: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def reads(self) -> set[str]:
        """The names of what it refers to."""
        return {*references(self.args), *references(dict(self.kwargs))}


@dataclass(frozen=True)
class Program:
    """A computation: the names of its inputs, its steps in order, and what it returns."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Any

    def finished_after(self) -> tuple[tuple[str, ...], ...]:
        """For each step, the results that no later one reads."""
        last: dict[str, int] = {name: 0 for name in self.inputs if self.steps}
        for index, step in enumerate(self.steps):
            last.update(dict.fromkeys((step.name, *step.reads()), index))
        for name in references(self.output):
            last.pop(name, None)
        finished: list[list[str]] = [[] for _ in self.steps]
        for name, index in last.items():
            finished[index].append(name)
        return tuple(tuple(names) for names in finished)


@dataclass(frozen=True)
class LayerPlan:
    """A layer's type, by its name in the vocabulary, and the arguments of its constructor that differ from their defaults."""

    type: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TensorPlan:
    """What a stored tensor is in the network."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    role: Literal["parameter", "buffer"]
    trainable: bool = False
    persistent: bool = True


@dataclass(frozen=True)
class TensorTable:
    """The stored tensors by name, and the further names under which tied ones are known."""

    stored: Mapping[str, TensorPlan]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def plan(self, name: str) -> TensorPlan | None:
        """What is known of the tensor with this name."""
        return self.stored.get(self.aliases.get(name, name))

    def names(self) -> list[str]:
        """All names, of stored tensors and of their aliases."""
        return [*self.stored, *self.aliases]


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to build a network, except the elements of its tensors.

    ``examples`` has, for each input, the shapes and types that it was saved with: loading goes through the network with those once.
    """

    program: Program
    examples: tuple[Any, ...]
    layers: Mapping[str, LayerPlan]
    tensors: TensorTable
