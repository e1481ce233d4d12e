"""Which channels of which layers go when units of a gate go."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from bayesprune.attach.trial import is_fewer
from bayesprune.attach.units import spread
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates import Gate, gates
from bayesprune.gates.hooks import InputPick, picked_inputs
from bayesprune.graph import trace
from bayesprune.graph.binding import spelled
from bayesprune.graph.layer_types import BATCH_NORMS, CONVOLUTIONS, INSTANCE_NORMS, LINEARS, TRANSPOSED_CONVOLUTIONS
from bayesprune.removal import Analysis, analyse
from bayesprune.removal.analysis import shape_of
from bayesprune.removal.sharing import disagreement
from bayesprune.removal.status import along

Side = Literal["inputs", "outputs", "units"]

CHANNEL_LAYERS = (*BATCH_NORMS, *INSTANCE_NORMS)
"""Layers that treat every channel by itself: their inputs and outputs are the same channels."""
CUTTABLE_LAYERS = (*LINEARS, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS, *CHANNEL_LAYERS)
"""Layers that can be made narrower."""
_TRIALS = 3


@dataclass(frozen=True, eq=False)
class Cut:
    """One side of a layer that units of a gate own.

    Attributes:
        layer: its path, or that of a gate.
        side: whether it is the layer's inputs or its outputs; for layers that treat channels one by one, their outputs stand for both, and
            for gates their units.
        owner: the unit of each channel.
        arriving: of inputs that come from the gate's units, the unit of each that arrives. A layer may pick from them; then ``owner`` has
            those that it picks.
    """

    layer: str
    side: Side
    owner: Tensor
    arriving: Tensor | None = None


@dataclass
class Cuts:
    """What can go with the units of each gate.

    Attributes:
        by_gate: by the gate's name, in network order.
        reasons: why the units of other gates cannot go.
    """

    by_gate: dict[str, list[Cut]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def gathers(self, gate: str) -> bool:
        """Whether a gate stands on a layer's input that stays as wide as it is, so that the layer must pick what it still reads."""
        return all(cut.side != "outputs" for cut in self.by_gate[gate])

    def groups(self) -> list[list[str]]:
        """Gates that lose the same units, because one layer's channels belong to all of them; those that pick come last, by themselves."""
        groups: list[list[str]] = []
        for name in self.by_gate:
            if not self.gathers(name):
                tied = [group for group in groups if any(self._tied(name, other) for other in group)]
                groups = [group for group in groups if group not in tied] + [[*(gate for group in tied for gate in group), name]]
        return groups + [[name] for name in self.by_gate if self.gathers(name)]

    def deciding_on(self, gates: Iterable[str]) -> set[str]:
        """The gates with which units of these gates go: they themselves, and those before them whose channels they are parts of."""
        places = {(gate, "units") for gate in gates}
        return {gate for gate, owned in self.by_gate.items() if any((cut.layer, cut.side) in places for cut in owned)}

    def leave_out(self, gate: str, reason: str) -> None:
        """Keep all units of a gate."""
        del self.by_gate[gate]
        self.reasons[gate] = reason

    def _tied(self, first: str, second: str) -> bool:
        places = {(cut.layer, cut.side) for cut in self.by_gate[first]}
        return any((cut.layer, cut.side) in places for cut in self.by_gate[second])


def find_cuts(model: nn.Module, example_inputs: ExampleInputs) -> Cuts:
    """What goes with the units of each gate of a model, found by the analysis that ``compact`` removes units with.

    It asks what holds for any weights, so the answer stays right while the model is trained.
    """
    found = gates(model)
    try:
        module = trace(model, example_inputs)
    except InputError as error:
        return Cuts(reasons=dict.fromkeys(found, str(error)))
    nodes = _passing_gates(module, found)
    tied = _tied_tensors(model)
    baseline = analyse(module, generic=True)
    cuts = Cuts()
    for name, gate in found.items():
        try:
            cuts.by_gate[name] = _cuts_of(model, name, gate, nodes, baseline)
            _require_single_owners(model, cuts.by_gate[name], tied)
        except _CannotCutError as obstacle:
            cuts.by_gate.pop(name, None)
            cuts.reasons[name] = str(obstacle)
    _leave_out_misfits(cuts)
    return cuts


def _leave_out_misfits(cuts: Cuts) -> None:
    """Gates that would lose the same units, but count them differently, keep theirs, unless their layer can pick what it still reads."""
    for group in cuts.groups():
        owners = {(cut.layer, cut.side): cut.owner for cut in cuts.by_gate[group[0]]}
        for name in group[1:]:
            if any(not torch.equal(cut.owner, owners.get((cut.layer, cut.side), cut.owner)) for cut in cuts.by_gate[name]):
                picked = [cut for cut in cuts.by_gate[name] if cut.side != "outputs"]
                if _reads_fewer(name, picked):
                    cuts.by_gate[name] = picked
                else:
                    cuts.leave_out(name, f"its units are not those of {group[0]}, which a layer shares with it")


def _reads_fewer(gate: str, cuts: Iterable[Cut]) -> bool:
    """Whether the layer on whose input a gate stands is among those that read less without its units."""
    return (gate.removesuffix(".input_gate"), "inputs") in {(cut.layer, cut.side) for cut in cuts}


class _CannotCutError(Exception):
    """Units of a gate cannot be taken out of the model as it is."""


def _passing_gates(module: fx.GraphModule, found: Mapping[str, Gate]) -> dict[str, fx.Node]:
    """Let every gate of a graph pass on what it is given; the nodes by the names of the gates."""
    names = {id(gate): name for name, gate in found.items()}
    nodes = {}
    for node in module.graph.nodes:
        gate = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(gate, Gate):
            nodes[names[id(gate)]] = node
    for node in nodes.values():
        module.set_submodule(str(node.target), nn.Identity())
    return nodes


def _cuts_of(model: nn.Module, name: str, gate: Gate, nodes: Mapping[str, fx.Node], baseline: Analysis) -> list[Cut]:
    units = gate.units
    if name not in nodes:
        raise _CannotCutError("the model does not come by it with this example")
    if gate.num_units < 2:
        raise _CannotCutError("it has a single unit")
    if units.groups is not None and units.groups.ndim > 1:
        raise _CannotCutError("its units are not channels")
    node = nodes[name]
    names = {each: other for other, each in nodes.items()}
    generator = torch.Generator().manual_seed(0)
    candidates: dict[tuple[str, Side], list[Cut]] | None = None
    for _ in range(_TRIALS):
        gone = torch.zeros(gate.num_units, dtype=torch.bool)
        gone[torch.randperm(gate.num_units, generator=generator)[: gate.num_units // 2]] = True
        zero = spread(gate, gone.double(), len(shape_of(node))) > 0
        analysis = analyse(baseline.module, zeros={node: zero}, baseline=baseline)
        _require_zeros_to_stay(baseline, analysis)
        call = disagreement(analysis)
        if call is not None:
            raise _CannotCutError(f"it frees a part of {call.target}, which is used in several places")
        spared = {place: (left, before) for place, left, before in _spared(model, baseline, analysis, names)}
        if candidates is None:
            candidates = {place: list(_possible_cuts(model, name, place, len(left))) for place, (left, _) in spared.items()}
        # What is freed by some units together, such as a feature map all of whose positions are pruned, is no unit's own.
        candidates = {
            place: [cut for cut in possible if _frees(gone[cut.owner], *spared[place])]
            for place, possible in candidates.items()
            if place in spared
        }
    cuts = [possible[0] for possible in (candidates or {}).values() if possible]
    for cut in cuts:
        _require_cuttable(model, cut, baseline.module)
    if all(cut.side != "outputs" for cut in cuts) and not _reads_fewer(name, cuts):
        raise _CannotCutError("no layer has channels that one of its units alone decides on")
    return cuts


def _frees(gone: Tensor, left: Tensor, before: Tensor) -> bool:
    """Whether the channels of units that are gone are those that nobody needs now; what nobody needed before does not tell."""
    return torch.equal(before & ~gone, left)


def _require_zeros_to_stay(baseline: Analysis, analysis: Analysis) -> None:
    """A zero that becomes another constant on its way, as in a batch normalisation, is a bias that is trained."""
    for node, fact in analysis.known.items():
        constant = fact.mask & (fact.value != 0)
        if bool((constant & ~baseline.known[node].mask if node in baseline.known else constant).any()):
            raise _CannotCutError(f"behind {spelled(node.target)} its units are constant, but not zero")


def _possible_cuts(model: nn.Module, name: str, place: tuple[str, Side], channels: int) -> Iterator[Cut]:
    """The ways in which the channels of a layer could belong to the units of a gate: one by one, or as flattened feature maps."""
    units = gates(model)[name].units
    own = torch.arange(units.count) if units.groups is None else units.groups.cpu()
    arrives = name != f"{place[0]}.input_gate"
    pick = _pick_at(model, *place) if arrives and name != place[0] else None
    count = channels if pick is None else pick.arriving
    if len(own) and count % len(own) == 0:
        ways = [own.repeat_interleave(count // len(own)), *([own.repeat(count // len(own))] if count > len(own) else [])]
        for way in ways:
            yield Cut(*place, way if pick is None else way[pick.index.cpu()], way if arrives else None)


def _pick_at(model: nn.Module, path: str, side: Side) -> InputPick | None:
    """What picks from what arrives at a side of a layer, or at the gate on its input."""
    layer = dict(model.named_modules(remove_duplicate=False)).get(path.removesuffix(".input_gate"))
    return None if layer is None or side == "outputs" else picked_inputs(layer)


def _spared(
    model: nn.Module, baseline: Analysis, analysis: Analysis, names: Mapping[fx.Node, str]
) -> Iterator[tuple[tuple[str, Side], Tensor, Tensor]]:
    """The sides of layers of which zeros spare something, with the channels that are needed, and that were before.

    Of gates too, whose nodes have these names.
    """
    found = gates(model)
    for node in analysis.module.graph.nodes:
        if node in names:
            dim = found[names[node]].units.channel_dim
            none = torch.zeros([1] * len(shape_of(node)), dtype=torch.bool)
            left, before = (_left(node, dim, each.unknown(node, each.needed.get(node, none))) for each in (analysis, baseline))
            if bool((before & ~left).any()):
                yield (names[node], "units"), left, before
            continue
        if node.op not in ("call_module", "get_attr"):
            continue
        name = str(node.target)
        layer = analysis.layer(node) if node.op == "call_module" else None
        outputs = _fewer(node, layer, baseline.needed.get(node), analysis.needed.get(node))
        has_width = layer is None or isinstance(layer, CUTTABLE_LAYERS) or next(layer.parameters(recurse=False), None) is not None
        if outputs is not None and has_width:
            yield (name, "outputs"), *outputs
        if not isinstance(layer, CUTTABLE_LAYERS) or isinstance(layer, CHANNEL_LAYERS) or is_depthwise(layer):
            continue
        for read, part in baseline.parts.get(node, {}).items():
            if "shape" not in read.meta:
                continue
            inputs = _fewer(read, layer, part, analysis.parts.get(node, {}).get(read))
            if inputs is not None:
                yield (name, "inputs"), *inputs


def _fewer(node: fx.Node, layer: nn.Module | None, before: Tensor | None, after: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The channels of an activation that are needed, and that were before; None if they are the same."""
    if before is None or not is_fewer(before, after) or "shape" not in node.meta:
        return None
    rank = len(shape_of(node))
    dim = rank - 1 if isinstance(layer, LINEARS) or rank < 2 else 1
    return _left(node, dim, torch.zeros_like(before) if after is None else after), _left(node, dim, before)


def _left(node: fx.Node, dim: int, needed: Tensor) -> Tensor:
    """Which channels are needed, by their number along a dimension."""
    shape = shape_of(node)
    return along(needed, dim, shape[dim])


def _require_cuttable(model: nn.Module, cut: Cut, traced: nn.Module) -> None:
    """Refuse what cannot be made narrower in the model as it is."""
    if cut.side == "units":
        return
    try:
        own, layer = model.get_submodule(cut.layer), traced.get_submodule(cut.layer)
    except AttributeError as error:
        raise _CannotCutError(f"it frees a part of {cut.layer}, which is no layer of the model") from error
    if type(own) is type(layer) and can_be_narrower(own):
        return
    if getattr(own, "groups", 1) > 1:
        raise _CannotCutError(f"it frees a part of {cut.layer}, a convolution in groups")
    raise _CannotCutError(f"it frees a part of {cut.layer} ({type(own).__name__}), which cannot be made narrower as it is")


def _tied_tensors(model: nn.Module) -> set[int]:
    """The tensors, by identity, that several modules hold, or one under several names."""
    held = Counter(id(tensor) for module in model.modules() for tensor in _own_tensors(module))
    return {each for each, count in held.items() if count > 1}


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def _require_single_owners(model: nn.Module, cuts: Iterable[Cut], tied: set[int]) -> None:
    """Refuse layers whose tensors are others' too: theirs would stay as they are."""
    for cut in cuts:
        layer = model.get_submodule(cut.layer)
        if any(id(tensor) in tied for tensor in _own_tensors(layer)):
            raise _CannotCutError(f"it frees a part of {cut.layer}, whose weights are also used elsewhere")


def can_be_narrower(layer: nn.Module | None) -> bool:
    """Whether a layer knows its sizes, and computes the same with fewer channels."""
    whole_groups = getattr(layer, "groups", 1) == 1 or (layer is not None and is_depthwise(layer))
    return isinstance(layer, CUTTABLE_LAYERS) and not parametrize.is_parametrized(layer) and whole_groups


def is_depthwise(layer: nn.Module) -> bool:
    """Whether a convolution treats every channel by itself."""
    return isinstance(layer, CONVOLUTIONS) and layer.groups == layer.in_channels == layer.out_channels and layer.groups > 1
