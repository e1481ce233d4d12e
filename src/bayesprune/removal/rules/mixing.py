"""Operations that mix elements along whole dimensions: means, softmax, products of activations, attention."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, is_tensor, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Rule
from bayesprune.removal.status import Known, aligned, along, known, reduced_to

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Layout, Rebuild


class Reduction(Rule):
    """Mean, sum or largest element over some dimensions."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        fact = analysis.known.get(read)
        if fact is None or not node.meta["dtype"].is_floating_point:
            return None
        dims, keep = self.dims(node)
        mask = fact.mask.all(dim=dims, keepdim=keep)
        name = getattr(node.target, "__name__", "")
        if name in ("amax", "amin"):
            return known(mask, getattr(fact.value, name)(dim=dims, keepdim=keep))
        value = fact.value.mean(dim=dims, keepdim=keep)
        if name == "sum":
            if any(dim in read.meta["varies"] for dim in dims):
                mask = mask & (value == 0)
            value = value * torch.Size([shape_of(read)[dim] for dim in dims]).numel()
        return known(mask, value)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        yield read, self.spread_back(node, needed)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        dims, keep = self.dims(node)
        layout = {dim: labels for dim, labels in build.layout_of(read).items() if dim not in dims}
        new = build.graph.create_node(node.op, node.target, (build.supply(read, layout),), node.kwargs)
        lost = () if keep else dims
        build.enter(node, new, {dim - sum(other < dim for other in lost): labels for dim, labels in layout.items()})

    def dims(self, node: fx.Node) -> tuple[tuple[int, ...], bool]:
        """Over which dimensions, and whether they stay with size one."""
        (read,) = tensor_inputs(node)
        rank = len(shape_of(read))
        dims: Any = node.kwargs.get("dim")
        dims = tuple(range(rank)) if dims is None or dims in ([], ()) else (dims,) if isinstance(dims, int) else tuple(dims)
        return tuple(dim % rank for dim in dims), bool(node.kwargs.get("keepdim", False))

    def is_linear(self, node: fx.Node) -> bool:
        """Whether it is a mean or a sum."""
        return node.target in (torch.mean, torch.sum)

    def spread_back(self, node: fx.Node, status: Tensor) -> Tensor:
        """A status of the result as one of the input."""
        dims, keep = self.dims(node)
        for dim in () if keep else sorted(dims):
            status = status.unsqueeze(dim)
        return status


class Softmax(Rule):
    """Along one dimension every element depends on all; along the others each position is by itself."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        yield read, analysis.unknown(read, needed.any(dim=self._dim(analysis, node), keepdim=True))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        dim = self._dim(build.analysis, node)
        layout = build.covering(node, {other: labels for other, labels in build.layout_of(read).items() if other != dim})
        source = build.supply(read, layout)
        if node.op == "call_module":
            new = build.call(str(node.target), build.same(build.analysis.layer(node)), source)
        else:
            new = build.graph.create_node(node.op, node.target, (source,), node.kwargs)
        build.enter(node, new, layout)

    def _dim(self, analysis: Analysis, node: fx.Node) -> int:
        dim = analysis.layer(node).dim if node.op == "call_module" else node.kwargs["dim"]
        assert isinstance(dim, int)
        return dim % len(shape_of(node))


class Product(Rule):
    """Matrix products of activations: leading dimensions side by side, the inner one summed over."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        left, right = _operands(node)
        rank = len(shape_of(node))
        if min(len(shape_of(left)), len(shape_of(right))) < 2:
            return None
        zeros = torch.zeros([1] * rank, dtype=torch.bool)
        for read, dim in ((left, -1), (right, -2)):
            fact = analysis.known.get(read)
            if fact is not None:
                zeros = zeros | aligned(fact.zero.all(dim=dim, keepdim=True), rank)
        return known(zeros, torch.zeros([1] * rank, dtype=torch.float64))

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        for read, summed in zip(_operands(node), (-1, -2), strict=True):
            if len(shape_of(read)) < 2 or len(shape_of(node)) < 2:
                yield read, torch.ones([1] * len(shape_of(read)), dtype=torch.bool)
                continue
            inner = needed.any(dim=summed, keepdim=True)
            yield read, analysis.unknown(read, reduced_to(inner, shape_of(read)))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        left, right = _operands(node)
        rank = len(shape_of(node))
        if min(len(shape_of(left)), len(shape_of(right))) < 2:
            super().rebuild(build, node)
            return
        offered = leading_layout(build, node, [left, right], rank - 2)
        for read, own, dim in ((left, len(shape_of(left)) - 2, rank - 2), (right, len(shape_of(right)) - 1, rank - 1)):
            if own in build.layout_of(read):
                offered[dim] = build.layout_of(read)[own]
        layout = build.covering(node, offered)
        rows, columns = (layout.get(dim) for dim in (rank - 2, rank - 1))
        sides = [_own_leading(layout, node, read) for read in (left, right)]
        for side, read, own, labels in ((sides[0], left, -2, rows), (sides[1], right, -1, columns)):
            for dim in (-2, -1):
                side.pop(len(shape_of(read)) + dim, None)
            if labels is not None:
                side[len(shape_of(read)) + own] = labels
        new = build.say("matmul", build.supply(left, sides[0]), build.supply(right, sides[1]))
        build.enter(node, new, layout)


class Attention(Rule):
    """Scaled dot-product attention: heads side by side; a head that nobody reads needs no queries, keys and values.

    Keys and values that several heads of queries share (``enable_gqa``) must exist as long as one of these does.
    """

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        value = node.args[2]
        assert isinstance(value, fx.Node)
        fact = analysis.known.get(value)
        if fact is None:
            return None
        zeros = fact.zero.all(dim=-2, keepdim=True)
        leading, shared_by = shape_of(value)[:-2], self.shared_by(node)
        if shared_by > 1:
            leading = (*leading[:-1], leading[-1] * shared_by)
            zeros = zeros.repeat_interleave(shared_by, dim=-3) if zeros.shape[-3] > 1 else zeros
        return known(zeros, torch.zeros_like(zeros, dtype=torch.float64)) if leading == shape_of(node)[:-2] else None

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        query, key, value, *masks = self._reads(node)
        yield query, analysis.unknown(query, reduced_to(needed.any(dim=-1, keepdim=True), shape_of(query)))
        shared_by, shared = self.shared_by(node), needed
        if shared_by > 1 and needed.shape[-3] > 1:
            shared = needed.unflatten(-3, (-1, shared_by)).any(dim=-3)  # type: ignore[no-untyped-call]
        yield key, analysis.unknown(key, reduced_to(shared.any(dim=(-2, -1), keepdim=True), shape_of(key)))
        yield value, analysis.unknown(value, reduced_to(shared.any(dim=-2, keepdim=True), shape_of(value)))
        for mask in masks:
            yield mask, analysis.unknown(mask, torch.ones([1] * len(shape_of(mask)), dtype=torch.bool))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        reads = self._reads(node)
        query, key, value, *masks = reads
        rank = len(shape_of(node))
        if any(len(shape_of(read)) != rank for read in (query, key, value)):
            super().rebuild(build, node)
            return
        offered = leading_layout(build, node, [query, key, value], rank - 2)
        if rank - 1 in build.layout_of(value):
            offered[rank - 1] = build.layout_of(value)[rank - 1]
        layout = build.covering(node, offered)
        leading = {dim: labels for dim, labels in layout.items() if dim < rank - 2}
        shared, options = self._shared(node, layout)
        supplied = [build.supply(query, _own_leading(leading, node, query))]
        supplied += [build.supply(read, _own_leading(own, node, read) | shared) for read, own in ((key, leading), (value, layout))]
        supplied += [build.supply(mask, _own_leading(leading, node, mask)) for mask in masks]
        build.enter(node, build.graph.create_node(node.op, node.target, tuple(supplied), options), layout)

    def shared_by(self, node: fx.Node) -> int:
        """How many heads of queries share one of keys and values."""
        query, key = self._reads(node)[:2]
        return shape_of(query)[-3] // shape_of(key)[-3] if node.kwargs.get("enable_gqa") else 1

    def _shared(self, node: fx.Node, layout: "Layout") -> tuple["Layout", dict[str, Any]]:
        """Which heads of keys and values there must be for those of the result, and the options with which these find theirs."""
        options = {name: option for name, option in node.kwargs.items() if name != "enable_gqa"}
        shared_by, heads = self.shared_by(node), len(shape_of(node)) - 3
        if shared_by == 1:
            return {}, options
        of_each = layout.get(heads, torch.arange(shape_of(node)[heads])) // shared_by
        groups = [(group, len(list(members))) for group, members in itertools.groupby(of_each.tolist())]
        if len({group for group, _ in groups}) < len(groups) or len({size for _, size in groups}) > 1:
            return {heads: of_each}, options  # Groups of different sizes: keys and values are written out for every head.
        return {heads: torch.tensor([group for group, _ in groups])}, options | ({"enable_gqa": True} if groups[0][1] > 1 else {})

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        return [argument for argument in node.args if is_tensor(argument)]  # type: ignore[misc]


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    left, right = node.args
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def leading_layout(build: "Rebuild", node: fx.Node, reads: list[fx.Node], count: int) -> "Layout":
    """One layout of the leading dimensions for all operands: theirs if they agree, otherwise what is needed."""
    layout: Layout = {}
    rank = len(shape_of(node))
    for dim in range(count):
        size = shape_of(node)[dim]
        own = [(read, dim - rank + len(shape_of(read))) for read in reads]
        full = [build.labels(read, place) for read, place in own if place >= 0 and shape_of(read)[place] == size]
        if all(len(labels) == size for labels in full):
            continue
        if all(torch.equal(labels, full[0]) for labels in full):
            layout[dim] = full[0]
        else:
            layout[dim] = along(build.analysis.needed[node], dim, size).nonzero().flatten()
    return layout


def _own_leading(leading: "Layout", node: fx.Node, read: fx.Node) -> "Layout":
    shift = len(shape_of(node)) - len(shape_of(read))
    return {dim - shift: labels for dim, labels in leading.items() if dim >= shift and shape_of(read)[dim - shift] > 1}
