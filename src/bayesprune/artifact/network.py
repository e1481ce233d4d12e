"""``LoadedNetwork``: a network that computes what a blueprint says."""

import operator
from typing import Any

import torch
from torch import nn

from bayesprune.artifact.blueprint import Blueprint, Step
from bayesprune.artifact.tensors import submodule, tensor_at
from bayesprune.artifact.values import LARGEST_INT, fill
from bayesprune.errors import InputError, first_line
from bayesprune.example_inputs import tensors_in
from bayesprune.graph.vocabulary import CREATING, FUNCTIONS, INT_ARITHMETIC

NUMBER_WORDS = {function.__name__: function for function in INT_ARITHMETIC}
FAILURES = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError, ArithmeticError, NotImplementedError)
"""What layers and functions of torch raise when they cannot work with what they are given."""
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_LARGEST_EXPONENT = 64


class LoadedNetwork(nn.Module):
    """A network without its class: it goes through the steps of its blueprint, calling layers and functions of a closed list.

    Layers are submodules under their original paths, so the ``state_dict`` has the keys of the network that was saved. It can be trained,
    moved, copied, compiled, exported and saved again like any module. It is called with the arguments of the saved network, by position
    or by name.

    Attributes:
        certificate: what was said about the network's exactness when it was saved, or None.
        cost_when_saved: its cost then, or None.
    """

    def __init__(
        self, blueprint: Blueprint, certificate: dict[str, Any] | None = None, cost_when_saved: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.certificate, self.cost_when_saved = certificate, cost_when_saved
        self._blueprint = blueprint
        self._finished = blueprint.program.finished_after()
        self._creates = any(step.kind == "call" and step.target in CREATING for step in blueprint.program.steps)

    @property
    def blueprint(self) -> Blueprint:
        """What the network consists of, as data."""
        return self._blueprint

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self._blueprint.program
        results = self._named(args, kwargs)
        device = _device(results) if self._creates else None
        if torch.compiler.is_compiling():
            return self._follow(results, device)
        step = None
        try:
            for step, finished in zip(program.steps, self._finished, strict=True):
                results[step.name] = self._compute(step, results, device)
                for name in finished:
                    del results[name]
            return fill(program.output, results)
        except torch.OutOfMemoryError:
            raise
        except FAILURES as error:
            raise InputError(_cannot_run(step, args, kwargs, error)) from error

    def _follow(self, results: dict[str, Any], device: torch.device | None) -> Any:
        """The steps without the guard around them, for compilers and exporters."""
        for step in self._blueprint.program.steps:
            results[step.name] = self._compute(step, results, device)
        return fill(self._blueprint.program.output, results)

    def _compute(self, step: Step, results: dict[str, Any], device: torch.device | None) -> Any:
        if step.kind == "tensor":
            return tensor_at(self, step.target)
        args, kwargs = fill(step.args, results), {name: fill(value, results) for name, value in step.kwargs.items()}
        if step.kind == "layer":
            return submodule(self, step.target)(*args, **kwargs)
        if step.kind == "number":
            return _number(step.target, args)
        target = FUNCTIONS[step.target].target
        if isinstance(target, str):
            return getattr(args[0], target)(*args[1:], **kwargs)
        if step.target in CREATING:
            kwargs["device"] = device
        return target(*args, **kwargs)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of the inputs."""
        inputs = self._blueprint.program.inputs
        named = dict(zip(inputs, args, strict=False))
        if len(args) > len(inputs) or any(name in named or name not in inputs for name in kwargs) or len(args) + len(kwargs) < len(inputs):
            raise InputError(
                f"the network takes the arguments {', '.join(inputs) or '(none)'}; it was called with {len(args)} by position"
                + (f" and {', '.join(kwargs)} by name" if kwargs else "")
            )
        return named | kwargs

    def extra_repr(self) -> str:
        program = self._blueprint.program
        return f"inputs: {', '.join(program.inputs)}; {len(program.steps)} steps"


def _number(word: str, args: tuple[Any, ...]) -> Any:
    """Arithmetic on sizes, kept from growing without bound."""
    if not all(isinstance(each, _NUMBERS) for each in args):
        raise TypeError(f"{word} is arithmetic on numbers")
    if word == operator.pow.__name__ and abs(args[-1]) > _LARGEST_EXPONENT:
        raise ValueError(f"a power of more than {_LARGEST_EXPONENT}")
    value = NUMBER_WORDS[word](*args)
    if type(value) is int and abs(value) > LARGEST_INT:
        raise ValueError("a number grows too large")
    return value


def _device(results: dict[str, Any]) -> torch.device | None:
    tensors = tensors_in(results)
    return tensors[0].device if tensors else None


def _cannot_run(step: Step | None, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> str:
    shapes = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors_in((args, kwargs)))
    place = f"at the step '{step.name}' ({step.kind} '{step.target}')" if step is not None else "at its start"
    return f"the network does not run on these inputs ({shapes or 'no tensors'}): {place}: {first_line(error)}"
