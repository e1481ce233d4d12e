"""Linear layers and convolutions: where units are made and read, and where they can be removed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, fx, nn

from bayesprune.graph.layer_types import TRANSPOSED_CONVOLUTIONS
from bayesprune.removal.analysis import Analysis, everything, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Rule
from bayesprune.removal.status import Known, along, is_along_only, known, on_dimension

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Rebuild


class Linear(Rule):
    """y = W x + b over the last dimension."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        layer = cast(nn.Linear, analysis.layer(node))
        weight = layer.weight.detach()
        reads = analysis.reads(node, weight).double()
        fact = analysis.known.get(read)
        rank = len(shape_of(node))
        if fact is None:
            mask = on_dimension(~reads.any(dim=1) if reads.shape[1] else torch.ones(len(reads), dtype=torch.bool), -1 % rank, rank)
            value = torch.zeros([1] * rank, dtype=torch.float64)
        else:
            inputs = (*fact.mask.shape[:-1], layer.in_features)
            mask = ((~fact.mask).expand(inputs).double() @ reads.T) == 0
            value = fact.value.expand(inputs) @ weight.cpu().double().T
        bias = torch.zeros(1, dtype=torch.float64) if layer.bias is None else layer.bias.detach().cpu().double()
        return known(mask, value + bias)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        layer = cast(nn.Linear, analysis.layer(node))
        reads = analysis.reads(node, layer.weight.detach()).double()
        outputs = needed.expand((*needed.shape[:-1], layer.out_features)).double()
        part = (outputs @ reads) > 0
        fact = analysis.known.get(read)
        # A constant that differs between positions cannot be part of the bias.
        part = analysis.unknown(read, part) if fact is None or is_along_only(fact.value, -1) else part
        if node in analysis.sized and not bool(part.any()):
            part = on_dimension(torch.arange(layer.in_features) == 0, -1, part.ndim)
        yield read, part

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        layer = cast(nn.Linear, build.analysis.layer(node))
        last = len(shape_of(node)) - 1
        rows = along(build.analysis.needed[node], last, layer.out_features).nonzero().flatten()
        wanted = torch.zeros(layer.in_features, dtype=torch.bool)
        for _, part in self.needs(build.analysis, node, build.analysis.needed[node]):
            wanted |= along(part, last, layer.in_features)
        there = build.labels(read, last)
        columns = there[wanted[there]]
        others = build.covering(node, {dim: labels for dim, labels in build.layout_of(read).items() if dim != last})
        source = build.supply(read, others | {last: columns})
        fact = build.analysis.known.get(read)
        shift = None
        if fact is not None:
            value = along_value(fact, last, layer.in_features)
            value[columns] = 0.0
            shift = layer.weight.detach().cpu().double() @ value
        smaller = build.one_for_all(node, smaller_linear(layer, rows, columns, shift))
        new = build.call(str(node.target), smaller, source)
        build.enter(node, new, others | {last: rows})


def along_value(fact: Known, dim: int, size: int) -> Tensor:
    """The known values along one dimension, zero where nothing is known or it differs between positions."""
    if not is_along_only(fact.value, dim):
        return torch.zeros(size, dtype=torch.float64)
    return torch.where(fact.mask, fact.value, 0.0).flatten().expand(size).clone()


def smaller_linear(layer: nn.Linear, rows: Tensor, columns: Tensor, shift: Tensor | None) -> nn.Linear:
    """The layer with these outputs and inputs, and with what the other inputs always contributed in its bias."""
    weight = layer.weight.detach()
    rows, columns = rows.to(weight.device), columns.to(weight.device)
    bias = layer.bias
    smaller = nn.Linear(len(columns), len(rows), bias=bias is not None or _is_there(shift), device="meta")
    smaller.weight = nn.Parameter(weight[rows][:, columns].clone(), requires_grad=layer.weight.requires_grad)
    if smaller.bias is not None:
        smaller.bias = shifted_bias(bias, shift, rows, weight, layer.weight.requires_grad)
    return smaller.train(layer.training)


def shifted_bias(bias: Tensor | None, shift: Tensor | None, rows: Tensor, like: Tensor, trains: bool) -> nn.Parameter:
    """The bias of the chosen rows with a constant added; one that is new is trained if the weights are."""
    base = like.new_zeros(len(rows), dtype=torch.float64) if bias is None else bias.detach().double()[rows]
    if shift is not None:
        base = base + shift.to(base.device)[rows]
    return nn.Parameter(base.to(like.dtype), requires_grad=trains if bias is None else bias.requires_grad)


def _is_there(shift: Tensor | None) -> bool:
    return shift is not None and bool(shift.any())


class Convolution(Rule):
    """Convolutions and transposed convolutions, grouped ones by whole groups.

    A channel that is constant but not zero cannot be part of the bias if the convolution reads zeros beyond the border. All such channels
    are merged into one of them, whose weights become the sum of theirs.
    """

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        layer = analysis.layer(node)
        weight = out_first(layer)
        reads = analysis.reads(node, weight)
        groups, inputs = cast(int, layer.groups), cast(int, layer.in_channels)
        fact = analysis.known.get(read)
        settled = torch.zeros(inputs, dtype=torch.bool)
        values = torch.zeros(inputs, dtype=torch.float64)
        if fact is not None and is_along_only(fact.mask, 1):
            settled = fact.mask.flatten().expand(inputs).clone()
            values = fact.value.flatten().expand(inputs).clone()
            if reads_border(layer):
                settled &= values == 0
            values[~settled] = 0.0
        per_group = weight.shape[0] // groups
        unsettled = (~settled).reshape(groups, -1).repeat_interleave(per_group, dim=0)
        mask = ~(reads & unsettled).any(dim=1)
        value = torch.zeros(weight.shape[0], dtype=torch.float64)
        if bool(values.any()):
            sums = weight.flatten(2).sum(dim=2, dtype=torch.float64).cpu()
            value = (sums * values.reshape(groups, -1).repeat_interleave(per_group, dim=0)).sum(dim=1)
        if layer.bias is not None:
            value = value + cast(Tensor, layer.bias).detach().cpu().double()
        rank = len(shape_of(node))
        return known(on_dimension(mask, 1, rank), on_dimension(value, 1, rank))

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        yield read, on_dimension(self.columns(analysis, node, read, needed)[0], 1, len(shape_of(read)))

    def columns(self, analysis: Analysis, node: fx.Node, read: fx.Node, needed: Tensor) -> tuple[Tensor, int | None]:
        """Which input channels must exist, and which of them stands for all that are constant."""
        wanted, merged = self._columns(analysis, node, read, needed)
        if node in analysis.sized and not bool(wanted.any()):
            wanted = torch.arange(len(wanted)) == 0  # Its weights are zero, or it is; what is wanted of it is its size.
        return wanted, merged

    def _columns(self, analysis: Analysis, node: fx.Node, read: fx.Node, needed: Tensor) -> tuple[Tensor, int | None]:
        layer = analysis.layer(node)
        weight = out_first(layer)
        rows = along(needed, 1, weight.shape[0])
        groups, inputs = cast(int, layer.groups), cast(int, layer.in_channels)
        if groups > 1:
            kept = kept_groups(rows, groups)
            return kept.repeat_interleave(inputs // groups), None
        reads = analysis.reads(node, weight)[rows].any(dim=0)
        fact = analysis.known.get(read)
        if fact is None or not is_along_only(fact.mask, 1):
            return reads, None
        mask, value = fact.mask.flatten().expand(inputs), fact.value.flatten().expand(inputs)
        wanted = reads & ~mask
        steady = reads & mask & (value != 0)
        if not reads_border(layer) or not bool(steady.any()):
            return wanted, None
        merged = int(torch.where(steady, value.abs(), -1.0).argmax())
        wanted[merged] = True
        return wanted, merged

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        analysis = build.analysis
        (read,) = tensor_inputs(node)
        layer = analysis.layer(node)
        needed = analysis.needed[node]
        wanted, merged = self.columns(analysis, node, read, needed)
        rows = along(needed, 1, out_first(layer).shape[0])
        groups = cast(int, layer.groups)
        if groups > 1:
            kept = kept_groups(rows, groups)
            rows = kept.repeat_interleave(len(rows) // groups)
            columns = wanted.nonzero().flatten()
            source = build.supply(read, {1: columns})
            smaller = smaller_convolution(layer, rows.nonzero().flatten(), None, None, groups=int(kept.sum()))
        else:
            there = build.labels(read, 1)
            columns = there[wanted[there]]
            source = build.supply(read, {1: columns})
            weight, shift = self._constants_folded(analysis, layer, read, columns, merged)
            smaller = smaller_convolution(layer, rows.nonzero().flatten(), columns, shift, weight=weight)
        build.enter(node, build.call(str(node.target), build.one_for_all(node, smaller), source), {1: rows.nonzero().flatten()})

    def _constants_folded(
        self, analysis: Analysis, layer: nn.Module, read: fx.Node, columns: Tensor, merged: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """The weights, and the shift of the bias, once the constant channels that are not among the columns have been moved into them."""
        weight = out_first(layer)
        fact = analysis.known.get(read)
        if fact is None or not is_along_only(fact.mask, 1):
            return weight, None
        value = torch.where(fact.mask, fact.value, 0.0).flatten().expand(weight.shape[1]).clone()
        if merged is None:
            value[columns] = 0.0
            return weight, weight.flatten(2).sum(dim=2, dtype=torch.float64).cpu() @ value
        scale = (value / value[merged]).to(weight.device)
        scale[[column for column in columns.tolist() if column != merged]] = 0.0
        weight = weight.clone()
        combined = torch.tensordot(weight.double(), scale.double(), dims=([1], [0]))
        weight[:, merged] = combined.to(weight.dtype)
        return weight, None


def out_first(layer: nn.Module) -> Tensor:
    """The weight of a convolution as (outputs, inputs of a group, ...)."""
    weight = cast(Tensor, layer.weight).detach()
    if not isinstance(layer, TRANSPOSED_CONVOLUTIONS):
        return weight
    groups = layer.groups
    split = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    return split.reshape(-1, split.shape[2], *split.shape[3:])


def reads_border(layer: nn.Module) -> bool:
    """Whether a constant channel contributes something else at the border than inside."""
    if isinstance(layer, TRANSPOSED_CONVOLUTIONS):
        return True
    if layer.padding_mode != "zeros":
        return False
    padding = layer.padding
    if isinstance(padding, str):
        return padding == "same" and any(size > 1 for size in cast(tuple[int, ...], layer.kernel_size))
    return any(size > 0 for size in cast(tuple[int, ...], padding))


def kept_groups(rows: Tensor, groups: int) -> Tensor:
    """The groups of a convolution of which some output is needed."""
    return rows.reshape(groups, -1).any(dim=1)


def smaller_convolution(
    layer: nn.Module, rows: Tensor, columns: Tensor | None, shift: Tensor | None, *, weight: Tensor | None = None, groups: int = 1
) -> nn.Module:
    """The convolution with these outputs and inputs."""
    weight = out_first(layer) if weight is None else weight
    rows = rows.to(weight.device)
    part = weight[rows] if columns is None else weight[rows][:, columns.to(weight.device)]
    inputs, outputs = part.shape[1] * groups, part.shape[0]
    transposed = isinstance(layer, TRANSPOSED_CONVOLUTIONS)
    if transposed:
        split = part.reshape(groups, -1, *part.shape[1:]).transpose(1, 2)
        part = split.reshape(-1, split.shape[2], *split.shape[3:])
    bias = cast(Tensor | None, layer.bias)
    options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "padding_mode": layer.padding_mode}
    if transposed:
        options["output_padding"] = layer.output_padding
    kind = next(each for each in type(layer).__mro__ if each.__module__ == "torch.nn.modules.conv")
    has_bias = bias is not None or _is_there(shift)
    smaller = kind(inputs, outputs, layer.kernel_size, groups=groups, bias=has_bias, device="meta", **options)
    smaller.weight = nn.Parameter(part.clone(), requires_grad=cast(Tensor, layer.weight).requires_grad)
    if has_bias:
        smaller.bias = shifted_bias(bias, shift, rows, weight, cast(Tensor, layer.weight).requires_grad)
    trained: nn.Module = smaller.train(layer.training)
    return trained


class Embedding(Rule):
    """A table of vectors: features that nobody reads leave it."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        for read in tensor_inputs(node):
            yield read, everything(read)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        layer = cast(nn.Embedding, build.analysis.layer(node))
        last = len(shape_of(node)) - 1
        kept = along(build.analysis.needed[node], last, layer.embedding_dim).nonzero().flatten()
        smaller = build.same(layer)
        smaller.weight = nn.Parameter(layer.weight.detach()[:, kept.to(layer.weight.device)].clone(), layer.weight.requires_grad)
        smaller.embedding_dim = len(kept)
        build.enter(node, build.call(str(node.target), smaller, build.whole(read)), {last: kept})
