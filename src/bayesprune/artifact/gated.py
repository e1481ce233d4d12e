"""Models with gates: their tensors and gates as data, and back into the model that they were made from."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.artifact.blueprint import TensorTable
from bayesprune.artifact.checks import entries, fields, flag, mapping, shown, text, whole
from bayesprune.artifact.tables import check_stored, table_from_json, table_to_json
from bayesprune.artifact.tensors import submodule, tensor_table
from bayesprune.artifact.values import LARGEST_INT, MalformedError, decode, encode
from bayesprune.attach.copying import copy_of
from bayesprune.attach.heads import put_on_heads
from bayesprune.errors import InputError, first_line
from bayesprune.gates import METHODS, Gate, gates, unwrapped
from bayesprune.gates.contract import ControlledLayer
from bayesprune.gates.hooks import INPUT_PICK, pick_inputs, picked_inputs, put_on
from bayesprune.gates.units import Units
from bayesprune.graph.fx_tracing import HEAD_GATE
from bayesprune.narrowing.copies import cut_to_sizes, layer_sizes

PLACES: dict[str, Callable[[nn.Module, Gate], None]] = {
    "input_gate": lambda layer, gate: put_on(layer, "input", gate),
    "output_gate": lambda layer, gate: put_on(layer, "output", gate),
    HEAD_GATE: put_on_heads,
}
"""How a gate is put where it belongs, by the name under which it is a child there: a new kind of place needs an entry here."""
_PLACE_SETTINGS = frozenset({"self", "num_units", "channel_dim", "groups"})
_SWITCH = "fixed_dropout"
_INPUTS_FIRST = "inputs first"
_SIZES, _PICKS, _WHOLE = "sizes", "picks", "whole"
"""Of a narrower model: the sizes of its layers, how many inputs those pick from that do, and how many units a gate had."""


class _MisfitError(ValueError):
    """The model that gates are to be put into is not the one they come from; the message says why."""


def describe_gated(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a model with gates, and the tensors to store."""
    paths = {id(module): path for path, module in model.named_modules()}
    tensors: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
    described = []
    for name, gate in gates(model).items():
        described.append(_describe_gate(name, gate, paths))
        if gate.units.groups is not None:
            tensors[_groups_name(name)] = gate.units.groups
        if gate.noise_columns is not None:
            tensors[_columns_name(name)] = gate.noise_columns
    others = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if others:
        raise InputError(f"the state '{others[0]}' of the model is no tensor and cannot be saved")
    table, stored = tensor_table(model, tensors)
    switch = getattr(model, _SWITCH, None)
    description: dict[str, Any] = {
        "model": type(model).__name__,
        "gates": described,
        "tensors": table_to_json(table),
        _SWITCH: switch if isinstance(switch, bool) else None,
    }
    if any(gate.noise_columns is not None for gate in gates(model).values()):
        description[_SIZES] = layer_sizes(model)
        picks = {path: picked_inputs(module) for path, module in model.named_modules()}
        description[_PICKS] = {path: pick.arriving for path, pick in picks.items() if pick is not None}
    return description, stored


def gates_into(model: nn.Module, description: Mapping[str, Any], stored: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with the gates and tensors of a file."""
    if not isinstance(model, nn.Module):
        raise InputError(f"'into' is an nn.Module, not {type(model).__name__}")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InputError("the model given as 'into' has tensors without memory, on the device 'meta': make it on a device, with to_empty()")
    model = unwrapped(model)
    table = table_from_json(description.get("tensors"))
    check_stored(table, stored)
    state = {name: stored[table.aliases.get(name, name)] for name in table.names()}
    described = [_read_gate(data, state) for data in entries(description.get("gates"), "gates")]
    names = {name for name, _, _ in described}
    if len(names) < len(described):
        raise MalformedError("two gates have the same name")
    for name in names:
        state.pop(_groups_name(name), None)
        state.pop(_columns_name(name), None)
    switch = description.get(_SWITCH)
    switch = None if switch is None else flag(switch, _SWITCH)
    sizes = _read_sizes(description.get(_SIZES, {}))
    picks = mapping(description.get(_PICKS, {}), "what layers pick from")
    result = copy_of(model)
    try:
        _cut_to(result, sizes)
        _put_gates(result, described)
        _put_picks(result, picks, state)
        _copy_state(result, state, table)
    except (_MisfitError, KeyError) as error:
        saved = shown(description.get("model"))
        raise InputError(
            f"the file was saved from another model ({saved}) than the {type(model).__name__} given as 'into': {error.args[0]}"
        ) from error
    if switch is not None and isinstance(getattr(result, _SWITCH, None), bool):
        setattr(result, _SWITCH, switch)
    return result


def _describe_gate(name: str, gate: Gate, paths: Mapping[int, str]) -> dict[str, Any]:
    known = inspect.signature(type(gate).__init__).parameters
    values = vars(gate) | gate.tuned
    try:
        settings = {key: encode(values[key]) for key in known if key in values and key not in _PLACE_SETTINGS}
    except MalformedError as error:
        raise InputError(f"the gate '{name}' cannot be saved: {error}") from error
    for controlled in gate.controlled:
        if id(controlled.layer) not in paths:
            raise InputError(f"the gate '{name}' controls a layer that is no part of the model")
    return {
        "name": name,
        "method": gate.method,
        "units": gate.num_units,
        "channel_dim": gate.units.channel_dim,
        "position": gate.position,
        "settings": settings,
        **({} if gate.noise_columns is None else {_WHOLE: gate.noise_width}),
        "controls": [_describe_controlled(paths[id(controlled.layer)], controlled) for controlled in gate.controlled],
    }


def _describe_controlled(path: str, controlled: ControlledLayer) -> list[str]:
    return [path, controlled.side, *([_INPUTS_FIRST] if controlled.inputs_first else [])]


def _read_gate(data: Any, state: Mapping[str, Tensor]) -> tuple[str, Gate, list[tuple[str, Any, bool]]]:
    """A gate's name, the gate itself with its tensors, and what it controls."""
    given = fields(data, "a gate", {"name", "method", "units", "channel_dim", "position", "settings", "controls"}, {_WHOLE})
    name, method = text(given["name"], "the name of a gate"), given["method"]
    if not isinstance(method, str) or method not in METHODS:
        raise MalformedError(f"the gate {name[:60]!r} is of an unknown method, {shown(method)}")
    units = whole(given["units"], "the number of units of a gate", 0, LARGEST_INT)
    known = inspect.signature(METHODS[method].__init__).parameters.keys() - _PLACE_SETTINGS
    settings = {key: decode(value, str.isidentifier) for key, value in mapping(given["settings"], "settings").items()}
    controls = [_read_controlled(each) for each in entries(given["controls"], "controls")]
    if not settings.keys() <= known:
        raise MalformedError(f"the gate {name[:60]!r} has settings that '{method}' does not know")
    others = (_groups_name(name), _columns_name(name))
    own = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.") and key not in others}
    try:
        with torch.device("meta"):  # The file's tensors take the place of those that the gate starts with.
            gate = METHODS[method](units, **settings)
        gate.units = Units(units, given["channel_dim"], _groups(name, state))
        _check_types(gate.state_dict(), own)
        gate.load_state_dict(own, assign=True)
        gate.retune()
    except (InputError, RuntimeError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise MalformedError(f"the gate {name[:60]!r} cannot be made: {first_line(error)}") from error
    gate.position = whole(given["position"], "the position of a gate", 0, LARGEST_INT)
    if _WHOLE in given:
        gate.noise_width = whole(given[_WHOLE], "the number of units that a gate had", units, LARGEST_INT)
        gate.noise_columns = _columns(name, state, units, gate.noise_width)
    return name, gate, controls


def _check_types(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Refuse tensors of types that a gate cannot compute with: those of floating point share one, and others are as they were made."""
    pairs = [(tensor.dtype, given[name].dtype) for name, tensor in expected.items() if name in given]
    floating = {found for wanted, found in pairs if wanted.is_floating_point}
    fits = len(floating) <= 1 and all(dtype.is_floating_point for dtype in floating)
    if not fits or any(wanted != found for wanted, found in pairs if not wanted.is_floating_point):
        raise ValueError(f"its tensors are of the types {', '.join(sorted({str(found) for _, found in pairs}))}")


def _groups(name: str, state: Mapping[str, Tensor]) -> Tensor | None:
    groups = state.get(_groups_name(name))
    if groups is not None and groups.dtype != torch.int64:
        raise ValueError(f"its groups are of type {groups.dtype}, not torch.int64")
    return groups


def _columns(name: str, state: Mapping[str, Tensor], units: int, width: int) -> Tensor:
    """Which units of the whole gate a narrower one has."""
    columns = state.get(_columns_name(name))
    fits = columns is not None and columns.dtype == torch.int32 and columns.shape == (units,)
    if columns is None or not fits or not _are_numbers(columns, width):
        raise MalformedError(f"the gate {name[:60]!r} does not say which {units} of {width} units it has")
    return columns


def _are_numbers(chosen: Tensor, count: int) -> bool:
    """Whether some of so many are given by their numbers, in rising order."""
    return not bool(((chosen < 0) | (chosen >= count)).any()) and bool((chosen.diff() > 0).all())


def _read_sizes(data: Any) -> dict[str, list[int]]:
    """The sizes of the layers of a narrower model, by their paths."""
    return {
        path: [whole(count, "the size of a layer", 1, LARGEST_INT) for count in entries(counts, "the sizes of a layer")]
        for path, counts in mapping(data, "the sizes of layers").items()
    }


def _cut_to(model: nn.Module, sizes: Mapping[str, Sequence[int]]) -> None:
    try:
        cut_to_sizes(model, sizes)
    except ValueError as error:
        raise _MisfitError(str(error)) from error


def _put_picks(model: nn.Module, picks: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Let the layers of a narrower model pick the inputs that they picked."""
    for path, count in picks.items():
        arriving, layer = whole(count, "the number of inputs to pick from", 0, LARGEST_INT), submodule(model, path)
        gate, index = layer._modules.get("input_gate"), state.get(f"{path}.{INPUT_PICK}.index")
        fits = index is not None and (index.dtype, index.ndim) == (torch.int64, 1)
        if not isinstance(gate, Gate) or index is None or not fits or not _are_numbers(index, arriving):
            raise MalformedError(f"the layer {path[:60]!r} cannot pick inputs")
        device = next(layer.parameters(), index).device
        pick_inputs(layer, index.to(device, copy=True), arriving, gate.units.channel_dim)


def _read_controlled(data: Any) -> tuple[str, Any, bool]:
    if not isinstance(data, list) or len(data) < 2 or data[1] not in ("inputs", "outputs") or data[2:] not in ([], [_INPUTS_FIRST]):
        raise MalformedError(f"what a gate controls is a path, inputs or outputs, and perhaps '{_INPUTS_FIRST}'")
    return text(data[0], "a path"), data[1], len(data) > 2


def _put_gates(model: nn.Module, described: Sequence[tuple[str, Gate, list[tuple[str, Any, bool]]]]) -> None:
    """Put gates onto a model, then name the layers that they control."""
    extra = gates(model).keys() - {name for name, _, _ in described}
    if extra:
        raise _MisfitError(f"it has a gate '{min(extra)}' that the file lacks")
    for name, gate, _ in described:
        _put_back(model, name, gate)
    for name, gate, controls in described:
        for path, side, inputs_first in controls:
            layer = submodule(model, path)
            try:
                gate.control(layer, side, inputs_first)
            except InputError as error:
                raise _MisfitError(f"the gate {name[:60]!r} does not fit the {side} of {path[:60]!r}: the numbers do not agree") from error


def _put_back(model: nn.Module, name: str, gate: Gate) -> None:
    path, _, child = name.rpartition(".")
    layer = submodule(model, path)
    gate.train(layer.training)
    like = next((tensor for tensor in (*layer.parameters(), *model.parameters())), None)
    if like is not None:
        gate.to(like.device)
    if isinstance(layer._modules.get(child), Gate):
        layer._modules[child] = gate
    elif child in PLACES:
        PLACES[child](layer, gate)
    else:
        raise InputError(f"the gate {name[:60]!r} cannot be put onto a plain model: give load a model that has its gates already")


def _copy_state(result: nn.Module, state: Mapping[str, Tensor], table: TensorTable) -> None:
    expected = result.state_dict(keep_vars=True)
    different = expected.keys() ^ state.keys()
    if different:
        raise _MisfitError(f"only one of them has the tensor {min(different)[:60]!r}")
    for name, tensor in state.items():
        if expected[name].shape != tensor.shape:
            shapes = f"{tuple(expected[name].shape)} in the model and {tuple(tensor.shape)} in the file"
            raise _MisfitError(f"the tensor '{name}' is {shapes}")
        if expected[name].dtype != tensor.dtype:
            types = f"{expected[name].dtype} in the model and {tensor.dtype} in the file"
            raise _MisfitError(f"the tensor '{name}' is {types}; give the model in the type of the file, and convert the result")
    ties = _ties(state, table) ^ _ties(state, tensor_table(result, expected)[0])
    if ties:
        tied = max(map(sorted, ties), key=len)
        raise _MisfitError(f"'{tied[0]}' and '{tied[1]}' are tied, the same memory, in only one of them")
    result.load_state_dict(state)
    for name, parameter in result.named_parameters(remove_duplicate=False):
        plan = table.plan(name)
        if plan is not None:
            parameter.requires_grad_(plan.trainable)


def _ties(names: Iterable[str], table: TensorTable) -> set[frozenset[str]]:
    """The names, those of tied tensors together."""
    together: dict[str, set[str]] = {}
    for name in names:
        together.setdefault(table.aliases.get(name, name), set()).add(name)
    return set(map(frozenset, together.values()))


def _groups_name(gate: str) -> str:
    return f"{gate}.units.groups"


def _columns_name(gate: str) -> str:
    return f"{gate}.noise_columns"
