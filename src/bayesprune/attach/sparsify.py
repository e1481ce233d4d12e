"""``sparsify``: a copy of a model with gates."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.attach.choice import Choice
from bayesprune.attach.copying import copy_of
from bayesprune.attach.heads import put_on_heads
from bayesprune.attach.placement import remember_left_alone
from bayesprune.attach.places import find_places
from bayesprune.errors import InputError, did_you_mean
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates import Gate, gates, method_class, unwrapped
from bayesprune.gates.hooks import put_on
from bayesprune.graph.calls import run_example
from bayesprune.graph.surroundings import in_turn
from bayesprune.models.description import GatePlace, LeftAlone

_PLACE_ARGUMENTS = ("self", "num_units", "channel_dim", "groups")


@in_turn()
def sparsify(
    model: nn.Module,
    method: str = "bb",
    *,
    example_inputs: ExampleInputs | None = None,
    before_norm: bool = False,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    **hyperparameters: Any,
) -> nn.Module:
    """A copy of the model with a gate wherever its units can be removed exactly.

    The places are found by following the model's computation; networks that state their ``gate_places()``, such as the paper's, are gated
    there without analysis. The copy is still a model of the same class, with the same parameters; ``placement`` shows what was gated, and
    names every layer that was left alone with the reason.

    Args:
        model: what to sparsify; it is not changed. Of a model that went through ``torch.compile`` or is distributed, the model inside is
            taken, so that the result is neither.
        method: ``bb``, ``dbb``, ``sbp``, ``vib``, ``l0``, ``gd`` or ``cd``. DBB is the second stage of BB: train with ``bb`` and call
            ``make_dependent`` instead of starting with ``dbb``.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments, such as two inputs of the data. May be
            left out for the networks of the paper and for an ``nn.Sequential`` that begins with a linear layer.
        before_norm: gate convolutions before their batch normalisation, as in the paper, rather than after the activation.
        include: gate only the layers whose path matches this pattern, or one of these, such as ``["features.*", "fc1"]``.
        exclude: do not gate the layers whose path matches this pattern, or one of these.
        **hyperparameters: of the method's gate, such as ``keep_init``, ``threshold`` or ``alpha``; a list has one value for each gate, in
            the order of ``placement``.

    Raises:
        InputError: the model cannot be copied, does not run on the example, or cannot be followed; nothing in it can be gated; or a pattern
            matches no layer.

    Example:
        >>> gated = sparsify(model, "bb", example_inputs=x)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"sparsify takes an nn.Module, not {type(model).__name__}")
    model = unwrapped(model)
    gate_class = method_class(method)
    check_hyperparameters(gate_class, hyperparameters)
    if gates(model):
        raise InputError("the model has gates already: give the plain model, or go on with make_dependent")
    chosen = Choice(include, exclude)
    gated = copy_of(model)
    places, left_alone = find_places(gated, example_inputs, before_norm, gate_class.signed, chosen)
    chosen.check_patterns(model)
    settings = dict(getattr(model, "gate_defaults", {}).get(method, {})) | hyperparameters
    listed = {name: value for name, value in settings.items() if isinstance(value, (list, tuple))}
    make = partial(gate_class, **{name: value for name, value in settings.items() if name not in listed})
    idle: set[int] = set()
    if example_inputs is not None:
        _put_in(gated, places, make)
        idle = _idle(gated, example_inputs)
    if idle:
        left_alone += [LeftAlone(places[position].controls, "it is called in a way that a gate cannot follow") for position in sorted(idle)]
        places = [place for position, place in enumerate(places) if position not in idle]
    if not places:
        raise InputError(_nothing_gated(model, left_alone))
    if idle or listed:
        gated = copy_of(model)
    if not gates(gated):
        _put_in(gated, places, make, listed)
    remember_left_alone(gated, left_alone)
    switch_off_fixed_dropout(gated)
    return gated


def _put_in(
    model: nn.Module, places: Sequence[GatePlace], make: Callable[..., Gate], listed: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """Attach a gate at each place, with its own of the listed hyper-parameters."""
    for name, values in (listed or {}).items():
        if len(values) != len(places):
            sites = ", ".join(place.controls for place in places)
            raise InputError(
                f"{name} has {len(values)} values, but there are {len(places)} gates, on {sites}: give one for each, or a number"
            )
    for position, place in enumerate(places):
        groups = None if place.groups is None else torch.tensor(place.groups)
        own = {name: values[position] for name, values in (listed or {}).items()}
        gate = make(place.units, channel_dim=place.channel_dim, groups=groups, **own)
        gate.position = position
        _attach(model, place, gate)


def _idle(gated: nn.Module, example_inputs: ExampleInputs) -> set[int]:
    """The positions of gates that the model runs past: whatever they learn, nothing would come of it."""
    found = gates(gated).values()
    idle = {gate.position for gate in found}
    hooks = [gate.register_forward_hook(lambda gate, _inputs, _output: idle.discard(gate.position)) for gate in found]
    run_example(gated, example_inputs)
    for hook in hooks:
        hook.remove()
    return idle


def _nothing_gated(model: nn.Module, left_alone: Sequence[LeftAlone]) -> str:
    if not left_alone:
        return f"nothing in {type(model).__name__} can be gated: it has no linear or convolutional layers"
    shown = "; ".join(f"{each.layer or 'the model itself'}: {each.reason}" for each in left_alone[:5])
    return f"nothing in {type(model).__name__} can be gated. {shown}{'; and others' if len(left_alone) > 5 else ''}"


def _attach(model: nn.Module, place: GatePlace, gate: Gate) -> None:
    layer = model.get_submodule(place.controls)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    gate.to(weight.device, torch.float64 if weight.dtype == torch.float64 else torch.float32)
    gate.control(layer, place.controls_dim, place.inputs_first)
    gate.train(layer.training)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # Which gates, and the layers that are written out for them, do not take.
    if place.side == "head":
        put_on_heads(model.get_submodule(place.site), gate)
    else:
        put_on(model.get_submodule(place.site), place.side, gate)


def check_hyperparameters(gate_class: type[Gate], hyperparameters: dict[str, Any]) -> None:
    """Refuse names that are no hyper-parameters of the method, and suggest the one that was meant."""
    known = [name for name in inspect.signature(gate_class.__init__).parameters if name not in _PLACE_ARGUMENTS]
    for name in hyperparameters:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"method '{gate_class.method}' has no hyper-parameter '{name}'; it has {', '.join(known)}.{hint}")


def switch_off_fixed_dropout(model: nn.Module) -> None:
    """The fixed dropout of the paper's networks belongs to pretraining; the gates' noise takes its place."""
    if isinstance(getattr(model, "fixed_dropout", None), bool):
        model.fixed_dropout = False  # type: ignore[assignment]
