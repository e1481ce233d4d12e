"""A model with fewer units: the same modules, made narrower, with a way back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesprune.attach.copying import copy_of
from bayesprune.gates import Gate, gates
from bayesprune.gates.hooks import pick_inputs, picked_inputs
from bayesprune.graph.layer_types import LINEARS, TRANSPOSED_CONVOLUTIONS
from bayesprune.narrowing.cuts import CHANNEL_LAYERS, CUTTABLE_LAYERS, Cuts, Side, can_be_narrower, is_depthwise

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
    copied = copy_of(model)
    left = {name: unit_mask(units, gates(model)[name].num_units) for name, units in kept.items()}
    masks: dict[tuple[str, Side], Tensor] = {}
    for name, owned in cuts.by_gate.items():
        for cut in owned:
            place = (cut.layer, cut.side)
            mask = left[name][cut.owner]
            masks[place] = masks[place] & mask if place in masks else mask
    for name in cuts.by_gate:
        if cuts.gathers(name):
            _gather_input(copied, cuts, name.removesuffix(".input_gate"), left, masks)
    narrow = Narrow(copied, {})
    paths = {module: path for path, module in copied.named_modules()}  # Of several names of a module, the one its tensors go by.
    for (path, side), mask in masks.items():
        if not bool(mask.all()):
            _make_narrower(narrow, paths[copied.get_submodule(path)], side, mask)
    return narrow


def layer_sizes(model: nn.Module) -> dict[str, list[int]]:
    """How many inputs and outputs each layer has that can be made narrower, by its path; a single number where they are the same."""
    return {
        path: [_count(layer, side) for side in _sides(layer)] for path, layer in model.named_modules() if isinstance(layer, CUTTABLE_LAYERS)
    }


def cut_to_sizes(model: nn.Module, sizes: Mapping[str, Sequence[int]]) -> None:
    """Give the layers of a whole model the sizes that ``layer_sizes`` gave of a narrower one; which values their tensors keep is left open.

    Raises:
        ValueError: the model has no such layer, or a smaller one.
    """
    layers = dict(model.named_modules())
    for path, counts in sizes.items():
        layer = layers.get(path)
        if layer is None or not isinstance(layer, CUTTABLE_LAYERS) or len(counts) != len(_sides(layer)):
            raise ValueError(f"it has no layer '{path}' of which the file's could be a part")
        for side, count in zip(_sides(layer), counts, strict=True):
            before = _count(layer, side)
            if not 0 < count <= before:
                raise ValueError(f"its layer '{path}' has {before} {side}, and the file's {count}; give a whole model")
            if count < before and not can_be_narrower(layer):
                raise ValueError(f"its layer '{path}' cannot be made narrower")
            if count < before:
                _make_narrower(Narrow(model, {}), path, side, torch.arange(before) < count)


def _sides(layer: nn.Module) -> tuple[Side, ...]:
    """The sides of a layer that have numbers of their own."""
    return ("outputs",) if isinstance(layer, CHANNEL_LAYERS) or is_depthwise(layer) else ("inputs", "outputs")


def _count(layer: nn.Module, side: Side) -> int:
    """How many channels a layer has on a side."""
    if side == "inputs":
        return int(getattr(layer, _size_of_inputs(layer)))
    return int(getattr(layer, _sizes_of_outputs(layer)[0]))


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
        setattr(layer, _size_of_inputs(layer), count)
        return
    _cut(narrow, path, layer, "weight", 1 if transposed else 0, mask)
    for name in ("bias", "running_mean", "running_var"):
        _cut(narrow, path, layer, name, 0, mask)
    for size in _sizes_of_outputs(layer):
        setattr(layer, size, count)


def _size_of_inputs(layer: nn.Module) -> str:
    """Where a layer says how many inputs it has."""
    return "in_features" if isinstance(layer, LINEARS) else "in_channels"


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
    left = left.to(next(gate.parameters()).device)
    if gate.noise_columns is None:
        gate.noise_columns, gate.noise_width = left.nonzero().flatten().to(torch.int32), count
    else:
        gate.noise_columns = gate.noise_columns[left]


def _cut(narrow: Narrow, path: str, owner: nn.Module, name: str, dim: int, mask: Tensor) -> None:
    """Cut one tensor of a module, if it has it."""
    tensor = getattr(owner, name, None)
    if tensor is None:
        return
    if tensor.ndim <= dim or tensor.shape[dim] != len(mask):
        raise ValueError(f"its layer '{path}' has a {name} of shape {tuple(tensor.shape)}, which its sizes do not explain")
    index = mask.nonzero().flatten().to(tensor.device)
    part = tensor.detach().index_select(dim, index).clone(memory_format=_order(tensor))
    setattr(owner, name, nn.Parameter(part, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part)
    narrow.parts.setdefault(f"{path}.{name}", []).append((dim, index))


def _order(tensor: Tensor) -> torch.memory_format:
    """In which order the elements of a tensor lie."""
    pixels = tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if pixels else torch.contiguous_format


def _gather_input(model: nn.Module, cuts: Cuts, path: str, left: Mapping[str, Tensor], masks: Mapping[tuple[str, Side], Tensor]) -> None:
    """Let a layer with a gate pick what it still reads from what still arrives: the gate decides on its own which inputs it needs."""
    layer = model.get_submodule(path)
    wanted, before = masks[path, "inputs"], picked_inputs(layer)
    read = torch.arange(len(wanted)) if before is None else before.index.cpu()
    arriving = torch.ones(len(wanted) if before is None else before.arriving, dtype=torch.bool)
    for name, owned in cuts.by_gate.items():
        for cut in owned:
            if (cut.layer, cut.side) == (path, "inputs") and cut.arriving is not None:
                arriving &= left[name][cut.arriving]
    if before is None and torch.equal(wanted, arriving):
        return
    device, gate = next(layer.parameters()).device, gates(model)[f"{path}.input_gate"]
    index = (arriving.cumsum(0) - 1)[read[wanted]]
    pick_inputs(layer, index.to(device), int(arriving.sum()), gate.units.channel_dim)
