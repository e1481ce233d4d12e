"""A model with fewer units: the same modules, made narrower, with a way back."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.attach.cuts import CHANNEL_LAYERS, Cuts, Side, is_depthwise
from bayesprune.gates import Gate, gates
from bayesprune.graph.layer_types import LINEARS, TRANSPOSED_CONVOLUTIONS

Kept = Mapping[str, Tensor]
"""The units that are left of each gate, by its name, in rising order."""


def unit_mask(units: Tensor, count: int) -> Tensor:
    """Units by their numbers as a mask of all of them."""
    mask = torch.zeros(count, dtype=torch.bool)
    mask[units.cpu()] = True
    return mask


@dataclass
class Narrow:
    """A narrower copy of a model.

    Attributes:
        model: the copy.
        parts: for each tensor that is a part of the model's: along which dimensions, and which indices.
    """

    model: nn.Module
    parts: dict[str, list[tuple[int, Tensor]]]

    def part_of(self, name: str, whole: Tensor) -> Tensor:
        """What the narrower model has of one of the model's tensors."""
        for dim, index in self.parts.get(name, ()):
            whole = whole.index_select(dim, index)
        return whole

    def put_into(self, whole: Tensor, name: str, part: Tensor) -> None:
        """Write a tensor of the narrower model to its place in the model's."""
        chosen = dict(self.parts.get(name, ()))
        if not chosen:
            assert whole.shape == part.shape, name
            whole.copy_(part)
        elif len(chosen) == 1:
            ((dim, index),) = chosen.items()
            whole.index_copy_(dim, index, part)
        else:
            whole[chosen[0][:, None], chosen[1]] = part

    @torch.no_grad()
    def write_to(self, model: nn.Module) -> None:
        """Bring the model up to date; what was removed stays in it as it was then."""
        whole = model.state_dict(keep_vars=True)
        for name, part in (*self.model.named_parameters(), *self.model.named_buffers()):
            if name in whole:
                self.put_into(whole[name], name, part)


def narrowed(model: nn.Module, cuts: Cuts, kept: Kept) -> Narrow:
    """A copy of a model that has only these units.

    Args:
        model: with gates.
        cuts: what goes with the units of its gates.
        kept: of each gate in ``cuts``.
    """
    copied = copy.deepcopy(model)
    left = {name: unit_mask(units, gates(model)[name].num_units) for name, units in kept.items()}
    masks: dict[tuple[str, Side], Tensor] = {}
    for name, owned in cuts.by_gate.items():
        for cut in owned:
            place = (cut.layer, cut.side)
            mask = left[name][cut.owner]
            masks[place] = masks[place] & mask if place in masks else mask
    for name in cuts.by_gate:
        if cuts.gathers(name):
            _gather_input(copied, cuts, name, left, masks)
    narrow = Narrow(copied, {})
    paths = {module: path for path, module in copied.named_modules()}  # Of several names of a module, the one its tensors go by.
    for (path, side), mask in masks.items():
        if not bool(mask.all()):
            _make_narrower(narrow, paths[copied.get_submodule(path)], side, mask)
    return narrow


def _make_narrower(narrow: Narrow, path: str, side: Side, mask: Tensor) -> None:
    """Cut a layer or a gate to the channels in a mask."""
    layer = narrow.model.get_submodule(path)
    if isinstance(layer, Gate):
        _cut_gate(narrow, path, layer, mask)
        return
    transposed = isinstance(layer, TRANSPOSED_CONVOLUTIONS)
    count = int(mask.sum())
    if side == "inputs":
        _cut(narrow, path, layer, "weight", 0 if transposed else 1, mask)
        setattr(layer, "in_features" if isinstance(layer, LINEARS) else "in_channels", count)
        return
    _cut(narrow, path, layer, "weight", 1 if transposed else 0, mask)
    for name in ("bias", "running_mean", "running_var"):
        _cut(narrow, path, layer, name, 0, mask)
    for size in _sizes_of_outputs(layer):
        setattr(layer, size, count)


def _sizes_of_outputs(layer: nn.Module) -> tuple[str, ...]:
    """Where a layer says how many outputs it has."""
    if isinstance(layer, CHANNEL_LAYERS):
        return ("num_features",)
    if isinstance(layer, LINEARS):
        return ("out_features",)
    return ("in_channels", "out_channels", "groups") if is_depthwise(layer) else ("out_channels",)


def _cut_gate(narrow: Narrow, path: str, gate: Gate, mask: Tensor) -> None:
    """Cut a gate to the units whose channels are left."""
    groups, count = gate.units.groups, gate.num_units
    left = mask if groups is None else unit_mask(groups.cpu()[mask], count)
    for name in gate.state_dict():
        if "." not in name and getattr(gate, name).shape[:1] == (count,):
            _cut(narrow, path, gate, name, 0, left)
    gate.units.count = int(left.sum())
    if groups is not None:
        renumbered = left.cumsum(0) - 1
        gate.units.groups = renumbered[groups.cpu()[mask]].to(groups.device)
    device = next(gate.parameters()).device
    gate.noise_columns, gate.noise_width = left.nonzero().flatten().to(device, torch.int32), count


def _cut(narrow: Narrow, path: str, owner: nn.Module, name: str, dim: int, mask: Tensor) -> None:
    """Cut one tensor of a module, if it has it."""
    tensor = getattr(owner, name, None)
    if tensor is None:
        return
    index = mask.nonzero().flatten().to(tensor.device)
    part = tensor.detach().index_select(dim, index).clone()
    setattr(owner, name, nn.Parameter(part, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part)
    narrow.parts.setdefault(f"{path}.{name}", []).append((dim, index))


def _gather_input(model: nn.Module, cuts: Cuts, name: str, left: Mapping[str, Tensor], masks: Mapping[tuple[str, Side], Tensor]) -> None:
    """Let the layer of a gate pick what it still reads from what still arrives: the gate decides on its own which inputs it needs."""
    path = name.removesuffix(".input_gate")
    layer = model.get_submodule(path)
    wanted = masks[path, "inputs"]
    arriving = torch.ones_like(wanted)
    for other, owned in cuts.by_gate.items():
        for cut in owned:
            if other != name and (cut.layer, cut.side) == (path, "inputs"):
                arriving &= left[other][cut.owner]
    if torch.equal(wanted, arriving):
        return
    device = next(layer.parameters()).device
    layer.register_buffer("picked", (arriving.cumsum(0) - 1)[wanted].to(device), persistent=False)
    layer.register_forward_pre_hook(_pick, prepend=True)


def _pick(layer: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].index_select(layer.input_gate.units.channel_dim, layer.picked), *inputs[1:])
