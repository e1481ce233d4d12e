"""Prediction with a gated model: the naive approximation, and Monte Carlo over masks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from threading import Lock, RLock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesprune.errors import InputError, first_line
from bayesprune.gates import gates, require_gates
from bayesprune.noise import NoisyModule

_TURNS: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()
_TURNS_LOCK = Lock()


def _turn(model: nn.Module) -> RLock:
    """What one thread at a time holds for a forward of a model, and nothing else meanwhile: it sets switches on the model's modules."""
    with _TURNS_LOCK:
        return _TURNS.setdefault(model, RLock())


def softmax(logits: Tensor) -> Tensor:
    """Probabilities over the last dimension."""
    return torch.softmax(logits, dim=-1)


def predict(
    model: nn.Module,
    x: Tensor,
    *,
    samples: int | None = None,
    activation: Callable[[Tensor], Tensor] | None = softmax,
) -> Tensor:
    """What the model predicts for a batch, as probabilities.

    Without ``samples`` this is the naive approximation: one forward with the mask at its posterior mean and the pruned units at zero
    (equation 17). With ``samples`` it is the mean prediction over that many masks drawn from the posterior (equation 16). Either way the
    model is in evaluation mode meanwhile: batch norms and DBB use their running statistics and do not change them.

    Args:
        model: a model with or without gates; sampling needs some. Several threads may predict with it; another that calls the model itself
            meanwhile gets masks that are drawn too.
        x: a batch of inputs.
        samples: how many masks to draw.
        activation: applied to the outputs before they are averaged: the softmax over the last dimension by default; None for none.

    Raises:
        InputError: ``x`` is no tensor, the model returns something else than one, or there are no gates to sample from.
    """
    total: Tensor | None = None
    for prediction in predictions(model, x, samples=samples, activation=activation, asked_by="predict"):
        total = prediction if total is None else total + prediction
    assert total is not None
    return total / (samples or 1)


@torch.no_grad()
def predictions(
    model: nn.Module, x: Tensor, *, samples: int | None, activation: Callable[[Tensor], Tensor] | None, asked_by: str
) -> Iterator[Tensor]:
    """The predictions whose mean ``predict`` gives: one with posterior means, or one for each of so many draws of the masks.

    Args:
        model: see ``predict``.
        x: see ``predict``.
        samples: see ``predict``.
        activation: see ``predict``.
        asked_by: the function that refusals speak of.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"{asked_by} takes an nn.Module, not {type(model).__name__}: {asked_by}(model, x)")
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(x)):
        raise InputError(
            f"{asked_by} takes a batch of inputs as a tensor, not {type(x).__name__}: make it one with torch.from_numpy(x) or "
            "torch.as_tensor(x), on the device and of the dtype of the model"
        )
    if samples is not None:
        if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
            raise InputError(f"samples is a number of masks to draw, at least 1, not {samples!r}")
        require_gates(model)
    if activation is not None and not callable(activation):
        raise InputError(f"activation is a function of the model's outputs, or None, not {activation!r}")
    for _ in range(int(samples or 1)):
        yield _prediction(model, x, activation, sampling=samples is not None, asked_by=asked_by)


def _prediction(model: nn.Module, x: Tensor, activation: Callable[[Tensor], Tensor] | None, *, sampling: bool, asked_by: str) -> Tensor:
    try:
        with _turn(model), evaluating(model, sampling):
            outputs = model(x)
    except (RuntimeError, TypeError) as error:
        if type(error) not in (RuntimeError, TypeError):  # Such as running out of memory, which a caller may want to know apart.
            raise
        raise InputError(
            f"{type(model).__name__} does not run on these inputs: {first_line(error)}. Give one batch that it takes as its only "
            "argument, on its device and of its dtype"
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"{asked_by} is for models that return one tensor, and {type(model).__name__} returns {type(outputs).__name__}: "
            "wrap it in a module that picks the tensor to predict with"
        )
    if activation is None:
        return outputs
    if activation is softmax and outputs.ndim > 0 and outputs.shape[-1] == 1:
        raise InputError(
            f"{type(model).__name__} has a single output, whose softmax is always 1: give {asked_by} activation=None for what it says "
            "itself, or activation=torch.sigmoid for the probability of one of two classes"
        )
    prediction = activation(outputs)
    if not isinstance(prediction, Tensor):
        raise InputError(f"activation must return a tensor, not {type(prediction).__name__}")
    return prediction


@contextmanager
def evaluating(model: nn.Module, sampling: bool = False) -> Iterator[None]:
    """The model in evaluation mode, its gates sampling or not; afterwards every module is as it was."""
    before = {module: module.training for module in model.modules()}
    switches = {gate: gate.sampling for gate in gates(model).values()}
    # A key that a trainer has set would give every Monte Carlo sample the same mask.
    keys = {module: module.noise_key for module in model.modules() if isinstance(module, NoisyModule)} if sampling else {}
    model.eval()
    for noisy in keys:
        noisy.noise_key = None
    for gate in switches:
        gate.sampling = sampling
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
        for gate, switch in switches.items():
            gate.sampling = switch
        for noisy, key in keys.items():
            noisy.noise_key = key
