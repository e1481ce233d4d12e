"""Operations that move elements without computing any: views, permutations, slices, concatenation."""

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Rule
from bayesprune.removal.rules.elementwise import function_behind
from bayesprune.removal.status import Known, along, compressed, is_along_only, known

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Layout, Rebuild


class Movement(Rule):
    """Whatever the operation does to the elements, it does to statements about them.

    To find where elements go, the operation is carried out on their numbers; a form of it for fewer elements is believed only if it moves
    the numbers of those elements to the right places.
    """

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        fact = analysis.known.get(read)
        if fact is None:
            return None
        mask, value = (moved(analysis, node, each.expand(shape_of(read))) for each in (fact.mask, fact.value))
        return known(mask, value)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        numbers = moved(analysis, node, numbered(read))
        wanted = torch.zeros(numbered(read).numel(), dtype=torch.bool)
        wanted[numbers[needed.expand(shape_of(node))]] = True
        yield read, compressed(wanted.reshape(shape_of(read)))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        layout = build.layout_of(read)
        if layout and self._smaller(build, node, read, layout):
            return
        new = build_call(build, node, build.whole(read), node.args[1:], dict(node.kwargs))
        build.enter(node, new, {})

    def _smaller(self, build: "Rebuild", node: fx.Node, read: fx.Node, layout: "Layout") -> bool:
        """Write the operation for the part that exists. False if it cannot be written so."""
        analysis = build.analysis
        if node.target is operator.getitem:
            layout = self._sliced(build, node, read, layout)
        numbers = numbered(read)
        present = torch.zeros(numbers.numel(), dtype=torch.bool)
        part = box(numbers, layout)
        present[part.flatten()] = True
        everywhere = moved(analysis, node, numbers)
        there = present[everywhere]
        after: Layout = {}
        for dim, size in enumerate(there.shape):
            labels = along(there, dim, size).nonzero().flatten()
            if len(labels) < size:
                after[dim] = labels
        expected = box(everywhere, after)
        if not bool(box(there, after).all()):
            return False
        for rest in adapted(node, after, read, layout):
            try:
                same = torch.equal(carried_out(analysis, node, part, *rest), expected)
            except (RuntimeError, IndexError, ValueError, TypeError):
                continue
            if same:
                build.enter(node, build_call(build, node, build.supply(read, layout), *rest), after)
                return True
        return False

    def _sliced(self, build: "Rebuild", node: fx.Node, read: fx.Node, layout: "Layout") -> "Layout":
        """Of the dimensions that are sliced, only what the slice takes, so that what is left of the slice is everything."""
        numbers = numbered(read)
        taken = torch.zeros(numbers.numel(), dtype=torch.bool)
        taken[moved(build.analysis, node, numbers).flatten()] = True
        taken = taken.reshape(shape_of(read))
        return {dim: labels[along(taken, dim, shape_of(read)[dim])[labels]] for dim, labels in layout.items()}


def numbered(node: fx.Node) -> Tensor:
    """The numbers of a result's elements, in its shape."""
    shape = shape_of(node)
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def box(elements: Tensor, layout: "Layout") -> Tensor:
    """The elements at the chosen indices of each dimension."""
    for dim, labels in layout.items():
        elements = elements.index_select(dim, labels)
    return elements


def moved(analysis: Analysis, node: fx.Node, elements: Tensor) -> Tensor:
    """The operation on something else than the activation."""
    return carried_out(analysis, node, elements, node.args[1:], dict(node.kwargs))


def carried_out(analysis: Analysis, node: fx.Node, elements: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The operation with other arguments, on something else than the activation."""
    numbers = fx.map_arg((args, kwargs), lambda size: size.meta["value"])
    result: Tensor = function_behind(analysis, node)(elements, *numbers[0], **numbers[1])
    return result


def build_call(build: "Rebuild", node: fx.Node, source: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """The operation as a node of the new graph."""
    if node.op == "call_module":
        return build.call(str(node.target), build.same(build.analysis.layer(node)), source)
    args, kwargs = fx.map_arg((args, kwargs), lambda size: build.new[size])
    return build.graph.create_node(node.op, node.target, (source, *args), kwargs)


def adapted(node: fx.Node, after: "Layout", read: fx.Node, before: "Layout") -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Forms of the operation's arguments that may fit the part of its input that exists."""
    args, kwargs = node.args[1:], dict(node.kwargs)
    if node.target is operator.getitem:
        yield (_without_slices(args[0], read, before),), {}
    if "shape" in kwargs:
        yield args, kwargs | {"shape": _resized(kwargs["shape"], after)}
    elif node.target == "expand":
        yield (_resized(args[0], after),), kwargs
    elif "sizes" in kwargs:
        start = cast(int, kwargs["dim"]) % len(shape_of(read))
        yield args, kwargs | {"sizes": _resized(kwargs["sizes"], {dim - start: labels for dim, labels in after.items()})}
    yield args, kwargs


def _resized(shape: Any, after: "Layout") -> tuple[Any, ...]:
    """The sizes of a view, with those of dimensions that lost units put right."""
    return tuple(
        size if dim not in after else -1 if isinstance(size, fx.Node) and size.meta["varies"] else len(after[dim]) if size != -1 else -1
        for dim, size in enumerate(shape)
    )


def _without_slices(index: Any, read: fx.Node, before: "Layout") -> Any:
    """An index whose slices along dimensions of which only the sliced part exists are left out."""
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in parts:
        given = sum(part is not None and part is not Ellipsis for part in parts)
        filling = (slice(None),) * (len(shape_of(read)) - given)
        position = parts.index(Ellipsis)
        parts = (*parts[:position], *filling, *parts[position + 1 :])
    result: list[Any] = []
    dim = 0
    for part in parts:
        if part is None:
            result.append(part)
            continue
        shrunk = dim in before
        result.append(slice(None) if shrunk and isinstance(part, slice) else 0 if shrunk and isinstance(part, int) else part)
        dim += 1
    return tuple(result)


class Concatenation(Rule):
    """Tensors put behind each other along one dimension."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        dim = self.dim(node)
        parts = self.parts(node)
        if not any(part in analysis.known for part in parts):
            return None
        nothing = [1] * len(shape_of(node))
        masks, values = [], []
        for part in parts:
            fact = analysis.known.get(part) or Known(torch.zeros(nothing, dtype=torch.bool), torch.zeros(nothing, dtype=torch.float64))
            masks.append(fact.mask)
            values.append(fact.value)
        common = [max(mask.shape[other] for mask in masks) for other in range(len(nothing))]

        def joined(statuses: list[Tensor]) -> Tensor:
            sizes = [[*common[:dim], shape_of(part)[dim], *common[dim + 1 :]] for part in parts]
            return torch.cat([status.expand(size) for status, size in zip(statuses, sizes, strict=True)], dim=dim)

        return known(joined(masks), joined(values))

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        dim, start = self.dim(node), 0
        for part in self.parts(node):
            size = shape_of(part)[dim]
            wanted = needed if needed.shape[dim] == 1 else needed.narrow(dim, start, size)
            fact = analysis.known.get(part)
            # Units that lie beside those of another part, along another dimension, may be filled in.
            yield part, wanted if fact is None or is_along_only(fact.mask, dim) else analysis.unknown(part, wanted)
            start += size

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        dim, start = self.dim(node), 0
        parts, labels = [], []
        needed = along(build.analysis.needed[node], dim, shape_of(node)[dim])
        for part in self.parts(node):
            size = shape_of(part)[dim]
            # Of a part that is constant nothing is needed, but its place may be.
            if part in build.new or part in build.analysis.needed or bool(needed[start : start + size].any()):
                labels.append(build.labels(part, dim) + start)
                parts.append((part, {dim: labels[-1] - start}))
            start += size
        beyond = self._other_dimensions(build, node, [part for part, _ in parts if not build.is_constant(part)])
        parts = [(part, layout | beyond) for part, layout in parts]
        computed = {part: build.supply(part, layout) for part, layout in parts if not build.is_constant(part)}
        beside = next(iter(computed.values()), None)
        sources = [computed[part] if part in computed else build.constant(part, layout, beside) for part, layout in parts]
        new = build.say("cat", tuple(sources), dim=dim) if len(sources) > 1 else sources[0]
        build.enter(node, new, {dim: torch.cat(labels)} | beyond)

    def _other_dimensions(self, build: "Rebuild", node: fx.Node, parts: list[fx.Node]) -> "Layout":
        """What exists of the dimensions that the parts have in common: what all of them have, if it is the same, or what is needed."""
        common: Layout = {}
        for dim, size in enumerate(shape_of(node)):
            if dim == self.dim(node) or not any(dim in build.layout_of(part) for part in parts):
                continue
            labels = [build.labels(part, dim) for part in parts]
            same = all(torch.equal(each, labels[0]) for each in labels)
            if same or dim not in node.meta["varies"]:
                common[dim] = labels[0] if same else along(build.analysis.needed[node], dim, size).nonzero().flatten()
        return build.covering(node, common)

    def parts(self, node: fx.Node) -> list[fx.Node]:
        """The tensors that are put together."""
        return list(cast(tuple[fx.Node, ...], node.args[0]))

    def dim(self, node: fx.Node) -> int:
        """Along which dimension the tensors are put."""
        dim = node.kwargs.get("dim", 0)
        assert isinstance(dim, int)
        return dim % len(shape_of(node))


class Selection(Rule):
    """``index_select`` with a constant index: elements get other numbers, and nothing need be done until somebody minds their order."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        read, index, dim = self._parts(analysis, node)
        fact = analysis.known.get(read)
        if fact is None or fact.mask.shape[dim] == 1:
            return fact
        return known(fact.mask.index_select(dim, index), fact.value.index_select(dim, index))

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        read, index, dim = self._parts(analysis, node)
        sizes = list(needed.shape)
        sizes[dim] = shape_of(read)[dim]
        full = needed if needed.shape[dim] > 1 else needed.expand([len(index) if d == dim else n for d, n in enumerate(needed.shape)])
        yield read, torch.zeros(sizes, dtype=torch.int64).index_add(dim, index, full.long()) > 0

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        read, index, dim = self._parts(build.analysis, node)
        layout = build.layout_of(read)
        there = build.labels(read, dim)
        source = build.supply(read, layout)
        if torch.equal(index.sort().values, torch.arange(shape_of(read)[dim])):
            number = torch.empty_like(index)
            number[index] = torch.arange(len(index))
            build.enter(node, source, layout | {dim: number[there]})
            return
        exists = torch.isin(index, there)
        position = torch.full((shape_of(read)[dim],), -1)
        position[there] = torch.arange(len(there))
        build.enter(node, build.gather(source, dim, position[index[exists]]), layout | {dim: exists.nonzero().flatten()})

    def _parts(self, analysis: Analysis, node: fx.Node) -> tuple[fx.Node, Tensor, int]:
        read, index = node.args[0], node.kwargs["index"]
        assert isinstance(read, fx.Node)
        assert isinstance(index, fx.Node)
        dim = node.kwargs["dim"]
        assert isinstance(dim, int)
        return read, analysis.tensor(index).cpu(), dim % len(shape_of(read))
