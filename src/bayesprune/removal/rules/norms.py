"""Normalisations: those of each channel by itself, and those that mix channels."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, fx, nn

from bayesprune.removal.analysis import Analysis, everything, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Rule
from bayesprune.removal.rules.layers import kept_groups
from bayesprune.removal.status import Known, along, is_along_only, known, on_dimension

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Rebuild

_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")


class ChannelNorm(Rule):
    """Batch and instance normalisation, and activations with a parameter for each channel: channel by channel."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        layer = analysis.layer(node)
        fact = analysis.known.get(read)
        shape = shape_of(node)
        weight = _vector(layer, "weight", shape[1])
        if fact is not None and uses_own_statistics(layer) and not is_along_only(fact.mask, 1):
            fact = None
        mask = (
            on_dimension(weight == 0, 1, len(shape)) if not isinstance(layer, nn.PReLU) else torch.zeros([1] * len(shape), dtype=torch.bool)
        )
        value = on_dimension(_vector(layer, "bias", shape[1]), 1, len(shape))
        if fact is not None:
            size = [fact.mask.shape[0], shape[1], *fact.mask.shape[2:]]
            mask = mask | fact.mask.expand(size)
            value = self._result(layer, fact.value.expand(size).contiguous())
        return known(mask, value)

    def _result(self, layer: nn.Module, value: Tensor) -> Tensor:
        channels = value.shape[1]
        vectors = {name: on_dimension(_vector(layer, name, channels), 1, value.ndim) for name in _PER_CHANNEL}
        if isinstance(layer, nn.PReLU):
            return torch.where(value >= 0, value, value * vectors["weight"])
        if not uses_own_statistics(layer):
            centred = (value - vectors["running_mean"]) / torch.sqrt(vectors["running_var"] + cast(float, layer.eps))
        else:  # Statistics of the input itself: a constant is its own mean.
            centred = torch.zeros_like(value)
        return centred * vectors["weight"] + vectors["bias"]

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        mixed = [dim for dim in range(needed.ndim) if dim != 1] if uses_own_statistics(analysis.layer(node)) else []
        yield read, needed.any(dim=mixed, keepdim=True) if mixed else needed

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        own = uses_own_statistics(build.analysis.layer(node))
        layout = {dim: labels for dim, labels in build.layout_of(read).items() if dim == 1 or not own}
        smaller = copy.deepcopy(build.analysis.layer(node))
        if 1 in layout:
            _shrink(smaller, layout[1], shape_of(node)[1])
        build.enter(node, build.call(str(node.target), build.one_for_all(node, smaller), build.supply(read, layout)), layout)


def uses_own_statistics(layer: nn.Module) -> bool:
    """Whether mean and variance are those of the input itself, in evaluation too."""
    return not isinstance(layer, nn.PReLU) and getattr(layer, "running_mean", None) is None


def _vector(layer: nn.Module, name: str, channels: int) -> Tensor:
    value = getattr(layer, name, None)
    if value is None:
        return torch.full((channels,), 1.0 if name in ("weight", "running_var") else 0.0, dtype=torch.float64)
    return cast(Tensor, value).detach().cpu().double().expand(channels)


def _shrink(layer: nn.Module, kept: Tensor, channels: int) -> None:
    """Leave a layer the parameters of the kept channels, in their order."""
    for name in _PER_CHANNEL:
        tensor = getattr(layer, name, None)
        if not isinstance(tensor, Tensor) or len(tensor) != channels:
            continue
        part = tensor.detach()[kept.to(tensor.device)].clone()
        setattr(layer, name, nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part)
    for name in ("num_features", "num_parameters"):
        if getattr(layer, name, None) == channels:
            setattr(layer, name, len(kept))


class MixingNorm(Rule):
    """Layer, group and RMS normalisation: every channel of the result depends on all channels that are normalised with it."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        layer = analysis.layer(node)
        weight = getattr(layer, "weight", None)
        if weight is None:
            return None
        bias = getattr(layer, "bias", None)
        scale = weight.detach().cpu().double()
        shift = torch.zeros_like(scale) if bias is None else bias.detach().cpu().double()
        rank = len(shape_of(node))
        if isinstance(layer, nn.GroupNorm):
            scale, shift = on_dimension(scale, 1, rank), on_dimension(shift, 1, rank)
        else:
            scale, shift = (each.reshape([1] * (rank - each.ndim) + list(each.shape)) for each in (scale, shift))
        return known(scale == 0, shift)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        yield read, analysis.unknown(read, everything(read))


class GroupNorm(MixingNorm):
    """Group normalisation: channels depend on the others of their group, and groups can go as a whole."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        channels = self._channels(analysis, node, needed)
        yield read, analysis.unknown(read, on_dimension(channels, 1, len(shape_of(read))))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        kept = self._channels(build.analysis, node, build.analysis.needed[node]).nonzero().flatten()
        smaller = cast(nn.GroupNorm, copy.deepcopy(build.analysis.layer(node)))
        size = shape_of(node)[1] // smaller.num_groups
        _shrink(smaller, kept, shape_of(node)[1])
        smaller.num_groups, smaller.num_channels = len(kept) // size, len(kept)
        build.enter(node, build.call(str(node.target), build.one_for_all(node, smaller), build.supply(read, {1: kept})), {1: kept})

    def _channels(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Tensor:
        """All channels of the groups of which some channel is needed."""
        channels, groups = shape_of(node)[1], cast(int, analysis.layer(node).num_groups)
        return kept_groups(along(needed, 1, channels), groups).repeat_interleave(channels // groups)


class SpatialOperation(Rule):
    """Pooling, padding and resizing: they work on positions, channel by channel.

    Args:
        keeps: whether a constant channel stays constant, given the operation and the constants.
    """

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        fact = analysis.known.get(read)
        if fact is None or any(size > 1 for size in fact.mask.shape[2:]):
            return None
        if keeps_constants(analysis, node):
            return fact
        return known(fact.zero, fact.value) if keeps_zeros(analysis, node) else None

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        spatial = tuple(range(2, needed.ndim))
        yield read, needed.any(dim=spatial, keepdim=True) if spatial else needed

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        layout = {dim: labels for dim, labels in build.layout_of(read).items() if dim < 2}
        source = build.supply(read, layout)
        if node.op == "call_module":
            new = build.call(str(node.target), build.same(build.analysis.layer(node)), source)
        else:
            new = build.graph.create_node(node.op, node.target, (source,), build.arguments(node.kwargs))
        build.enter(node, new, layout)


def keeps_constants(analysis: Analysis, node: fx.Node) -> bool:
    """Whether a channel that is the same everywhere comes out the same everywhere."""
    if node.op != "call_module":
        return getattr(node.target, "__name__", "") == "interpolate"
    layer = analysis.layer(node)
    if isinstance(layer, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)):
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
        divided_by_count = getattr(layer, "divisor_override", None) is None
        return divided_by_count and (not layer.count_include_pad or not any(padding))
    return not isinstance(layer, (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d))


def keeps_zeros(analysis: Analysis, node: fx.Node) -> bool:
    """Whether a channel of zeros comes out as zeros."""
    if node.op != "call_module":
        rest = node.kwargs
        return rest.get("mode", "constant") != "constant" or not rest.get("value")
    layer = analysis.layer(node)
    return not isinstance(layer, (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)) or layer.value == 0
