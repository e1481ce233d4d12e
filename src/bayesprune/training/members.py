"""Models of one structure, trained side by side as one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map_only

from bayesprune.errors import InputError

_MODEL = "model."


class Members:
    """E models of one structure. Their tensors are stacked, and the code of one model is vectorised over the stack.

    A single model is called as it is, and trained in place. Either way whatever goes in and comes out has a leading dimension for the
    models.

    Args:
        models: of the same classes, shapes and modes, on one device. Only the first is called; ``write_back`` brings the others up to date.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise InputError("there is no model to train")
        self.models = list(models)
        self.first = self.models[0]
        self.alone = len(self.models) == 1
        self.parameters = _stacked([dict(model.named_parameters()) for model in models], self.alone)
        self.buffers = _stacked([dict(model.named_buffers()) for model in models], self.alone)

    def __len__(self) -> int:
        return len(self.models)

    def apply(self, function: Callable[..., Any], *arguments: Tensor, shared: tuple[Tensor, ...] = ()) -> Any:
        """What the function computes from every model; see ``vectorised``.

        Args:
            function: of a model, of its part of the arguments and of what is shared.
            *arguments: with a leading dimension for the models.
            shared: arguments that are the same for all models.
        """
        return self.vectorised(function, len(shared))(*arguments, *shared)

    def vectorised(self, function: Callable[..., Any], shared: int = 0) -> Callable[..., Any]:
        """A function of one model as one of all of them.

        Args:
            function: of a model and arguments; returns a tensor or a nest of them.
            shared: how many of the last arguments are the same for all models; the others get a leading dimension for the models.
        """
        if self.alone:
            return partial(_of_one, function, self.first, shared)
        called = _Called(self.first, function)

        def one(tensors: dict[str, Tensor], *arguments: Tensor) -> Any:
            return functional_call(called, tensors, arguments)

        def of_all(*arguments: Tensor) -> Any:
            tensors = {_MODEL + name: tensor for name, tensor in (self.parameters | self.buffers).items()}
            own = len(arguments) - shared
            return vmap(one, in_dims=(0, *[0] * own, *[None] * shared), randomness="different")(tensors, *arguments)

        return of_all

    @contextmanager
    def buffers_restored(self) -> Iterator[None]:
        """Undo whatever happens to the buffers meanwhile: models change them in place, or replace them."""
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        modules = [(module, dict(module._buffers)) for module in self.first.modules()]
        try:
            yield
        finally:
            for module, buffers in modules:
                module._buffers.update(buffers)
            with torch.no_grad():
                for name, buffer in self.buffers.items():
                    buffer.copy_(before[name])

    @torch.no_grad()
    def write_back(self) -> list[nn.Module]:
        """The models, with the values that their stacked tensors have now."""
        if not self.alone:
            for index, model in enumerate(self.models):
                for own, stack in ((dict(model.named_parameters()), self.parameters), (dict(model.named_buffers()), self.buffers)):
                    for name, tensor in own.items():
                        tensor.copy_(stack[name][index])
        return self.models


class _Called(nn.Module):
    """A function of a model in the form in which torch swaps tensors."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *arguments: Tensor) -> Any:
        return self.function(self.model, *arguments)


def _of_one(function: Callable[..., Any], model: nn.Module, shared: int, *arguments: Tensor) -> Any:
    own = len(arguments) - shared
    result = function(model, *(argument[0] for argument in arguments[:own]), *arguments[own:])
    return tree_map_only(Tensor, _with_leading_dimension, result)


def _with_leading_dimension(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0)


def _stacked(tensors: list[dict[str, Tensor]], alone: bool) -> dict[str, Tensor]:
    if alone:
        return tensors[0]
    for each in tensors[1:]:
        if {name: tensor.shape for name, tensor in each.items()} != {name: tensor.shape for name, tensor in tensors[0].items()}:
            raise InputError("models that are trained side by side must have tensors of the same names and shapes")
    stacks = {name: _stack([each[name].detach() for each in tensors]) for name in tensors[0]}
    return {name: stack.requires_grad_(tensors[0][name].requires_grad) for name, stack in stacks.items()}


def _stack(tensors: list[Tensor]) -> Tensor:
    """The tensors with a leading dimension. Matrices lie in memory transposed, as batched products leave their gradients on a GPU."""
    if tensors[0].ndim != 2 or tensors[0].device.type != "cuda":
        return torch.stack(tensors)
    return torch.stack([tensor.T for tensor in tensors]).transpose(1, 2)
