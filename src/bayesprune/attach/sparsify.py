"""``sparsify``: a copy of a model with gates."""

import copy
import inspect
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.gates.hooks import put_on
from bayesprune.attach.places import find_places
from bayesprune.errors import InputError, did_you_mean
from bayesprune.gates import Gate, gates, method_class
from bayesprune.models.description import GatePlace
from bayesprune.prediction import evaluating

_PLACE_ARGUMENTS = ("self", "num_units", "channel_dim", "groups")


def sparsify(
    model: nn.Module,
    method: str = "bb",
    *,
    example_inputs: Tensor | tuple[Tensor, ...] | None = None,
    before_norm: bool = False,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    **hyperparameters: Any,
) -> nn.Module:
    """A copy of the model with a gate wherever its units can be pruned.

    It handles the networks of ``bayesprune.models``, any model that states its ``gate_places()``, and chains (``nn.Sequential``) of linear
    layers, convolutions, norms, activations and pooling. The copy is still a model of the same class; ``placement`` shows what was gated.

    Args:
        model: what to sparsify; it is not changed.
        method: ``bb``, ``dbb``, ``sbp``, ``vib``, ``l0``, ``gd`` or ``cd``. DBB is the second stage of BB: train with ``bb`` and call
            ``make_dependent`` instead of starting with ``dbb``.
        example_inputs: run through the gated copy, in evaluation mode, to see that it works.
        before_norm: gate convolutions before their batch normalisation, as in the paper, rather than after the activation.
        include: gate only the layers whose path matches one of these patterns.
        exclude: do not gate the layers whose path matches one of these patterns.
        **hyperparameters: of the method's gate, such as ``keep_init``, ``threshold`` or ``alpha``.

    Example:
        >>> gated = sparsify(model, "bb", example_inputs=x)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"sparsify takes an nn.Module, not {type(model).__name__}")
    gate_class = method_class(method)
    check_hyperparameters(gate_class, hyperparameters)
    if gates(model):
        raise InputError("the model has gates already: give the plain model, or go on with make_dependent")
    gated = copy.deepcopy(model)
    places, _ = find_places(gated, before_norm)
    chosen = [place for place in places if _is_chosen(place.controls, include, exclude)]
    if not chosen:
        raise InputError(
            f"nothing in {type(model).__name__} can be gated: {len(places)} places were found, none is left after include/exclude"
        )
    defaults = getattr(model, "gate_defaults", {}).get(method, {})
    for position, place in enumerate(chosen):
        # A linear layer reads the last dimension of its input, whatever lies between that and the batch.
        reads_features = place.side == "input" and isinstance(gated.get_submodule(place.site), nn.Linear)
        gate = gate_class(place.units, channel_dim=-1 if reads_features else 1, **(dict(defaults) | hyperparameters))
        gate.position = position
        _attach(gated, place, gate)
    _switch_off_fixed_dropout(gated)
    if example_inputs is not None:
        check_runs(gated, example_inputs)
    return gated


def check_runs(model: nn.Module, example_inputs: Tensor | tuple[Tensor, ...]) -> None:
    """Run a model once in evaluation mode and report in our own words if it cannot."""
    try:
        with torch.no_grad(), evaluating(model):
            model(*(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(f"the gated model does not run on example_inputs: {error}") from error


def _attach(model: nn.Module, place: GatePlace, gate: Gate) -> None:
    layer = model.get_submodule(place.controls)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    gate.to(weight.device, torch.float64 if weight.dtype == torch.float64 else torch.float32)
    gate.control(layer, place.controls_dim)
    gate.train(layer.training)
    put_on(model.get_submodule(place.site), place.side, gate)


def _is_chosen(path: str, include: Sequence[str] | None, exclude: Sequence[str]) -> bool:
    wanted = include is None or any(fnmatch(path, pattern) for pattern in include)
    return wanted and not any(fnmatch(path, pattern) for pattern in exclude)


def check_hyperparameters(gate_class: type[Gate], hyperparameters: dict[str, Any]) -> None:
    """Refuse names that are no hyper-parameters of the method, and suggest the one that was meant."""
    known = [name for name in inspect.signature(gate_class.__init__).parameters if name not in _PLACE_ARGUMENTS]
    for name in hyperparameters:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"method '{gate_class.method}' has no hyper-parameter '{name}'; it has {', '.join(known)}.{hint}")


def _switch_off_fixed_dropout(model: nn.Module) -> None:
    """The fixed dropout of the paper's networks belongs to pretraining; the gates' noise takes its place."""
    if isinstance(getattr(model, "fixed_dropout", None), bool):
        model.fixed_dropout = False  # type: ignore[assignment]
