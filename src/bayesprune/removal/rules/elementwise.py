"""Operations on each element by itself: activations, sums and products of activations."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, is_tensor, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Rule
from bayesprune.removal.status import Known, aligned, along, known, on_dimension, reduced_to

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Layout, Rebuild


def function_behind(analysis: Analysis, node: fx.Node) -> Callable[..., Any]:
    """What a node calls, as a function of tensors."""
    if node.op == "call_module":
        return analysis.layer(node)
    if node.op == "call_method":
        return lambda *args, **kwargs: getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target


class Activation(Rule):
    """One tensor in, one out, element by element."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        (read,) = tensor_inputs(node)
        fact = analysis.known.get(read)
        if fact is None or not node.meta["dtype"].is_floating_point:
            return None
        function = function_behind(analysis, node)
        value = fact.value if node.target == "to" else function(fact.value.clone(), **node.kwargs)
        return known(fact.mask, value)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        (read,) = tensor_inputs(node)
        yield read, needed

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        layout = build.layout_of(read)
        source = build.supply(read, layout)
        if node.op == "call_module":
            new = build.call(str(node.target), build.same(build.analysis.layer(node)), source)
        else:
            new = build.graph.create_node(node.op, node.target, (source,), node.kwargs)
        build.enter(node, new, layout)


class Combination(Rule):
    """Several tensors, broadcast against each other."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        if not node.meta["dtype"].is_floating_point:
            return None
        rank = len(shape_of(node))
        facts = {read: analysis.known.get(read) for read in tensor_inputs(node)}
        vanishing = [aligned(fact.zero, rank) for fact in facts.values() if fact is not None] if node.target is torch.mul else []
        mask = torch.zeros([1] * rank, dtype=torch.bool)
        value: Tensor = torch.zeros([1] * rank, dtype=torch.float64)
        numbers = [read for read in node.all_input_nodes if not is_tensor(read)]
        if all(fact is not None for fact in facts.values()) and not any(number.meta["varies"] for number in numbers):
            present = {read: fact for read, fact in facts.items() if fact is not None}
            arguments = fx.map_arg(node.args, lambda read: aligned(present[read].value, rank) if read in present else read.meta["value"])
            value = function_behind(analysis, node)(*arguments, **node.kwargs).double()
            mask = torch.ones_like(value, dtype=torch.bool)
            for fact in present.values():
                mask = mask & aligned(fact.mask, rank)
        for zero in vanishing:
            value = torch.where(zero, 0.0, value)
            mask = mask | zero
        return known(mask, value)

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        for read in tensor_inputs(node):
            yield read, analysis.unknown(read, reduced_to(needed, shape_of(read)))

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        reads = tensor_inputs(node)
        if node.target is torch.add and len(reads) == 2 and self._add_to_part(build, node, reads):
            return
        common = self._common_layout(build, node, reads)
        arguments = fx.map_arg(node.args, lambda read: build.supply(read, _own(common, node, read)) if is_tensor(read) else build.new[read])
        keywords = fx.map_arg(node.kwargs, lambda read: build.new[read])
        build.enter(node, build.graph.create_node(node.op, node.target, arguments, keywords), common)

    def _common_layout(self, build: "Rebuild", node: fx.Node, reads: list[fx.Node]) -> "Layout":
        """What all inputs have, if it is the same; otherwise what is needed."""
        common: Layout = {}
        for dim, size in enumerate(shape_of(node)):
            spread = [(read, dim - len(shape_of(node)) + len(shape_of(read))) for read in reads]
            full = [(read, own) for read, own in spread if own >= 0 and shape_of(read)[own] == size and size > 1]
            if not any(own in build.layout_of(read) for read, own in full):
                continue
            candidates = [build.labels(read, own) for read, own in full]
            if all(torch.equal(labels, candidates[0]) for labels in candidates[1:]):
                common[dim] = candidates[0]
            elif dim in node.meta["varies"]:
                common[dim] = max(candidates, key=len)
            else:
                common[dim] = along(build.analysis.needed[node], dim, size).nonzero().flatten()
        return build.covering(node, common)

    def _add_to_part(self, build: "Rebuild", node: fx.Node, reads: list[fx.Node]) -> bool:
        """A sum of which one operand has fewer channels than the other: it is added to those channels only."""
        if node.kwargs or any(shape_of(read) != shape_of(node) for read in reads):
            return False
        for base, part in (reads, reversed(reads)):
            if build.is_constant(base):
                continue
            layout = build.layout_of(base)
            if any(labels is not layout[dim] for dim, labels in build.covering(node, layout).items()):
                continue
            if build.is_constant(part):
                build.enter(node, self._with_constants(build, node, base, part, layout, None), layout)
                return True
            smaller = build.layout_of(part)
            missing = [dim for dim in smaller if dim not in layout and dim not in node.meta["varies"]]
            rest = {dim: labels for dim, labels in smaller.items() if dim not in missing}
            same = set(rest) == set(layout) and all(torch.equal(labels, layout[dim]) for dim, labels in rest.items())
            if len(missing) == 1 and same:
                dim = missing[0]
                result = self._with_constants(build, node, base, part, layout, (dim, smaller[dim]))
                index = build.tensor("kept", smaller[dim].to(build.device()))
                build.enter(node, build.say("index_add", result, dim=dim, index=index, source=_as_summed(build, node, part)), layout)
                return True
        return False

    def _with_constants(
        self, build: "Rebuild", node: fx.Node, base: fx.Node, part: fx.Node, layout: "Layout", present: tuple[int, Tensor] | None
    ) -> fx.Node:
        """The base, plus what the other operand always contributes where it does not exist."""
        fact = build.analysis.known.get(part)
        source = _as_summed(build, node, base)
        if fact is None:
            return source
        constants = torch.where(fact.mask, fact.value, 0.0)
        if present is not None:
            dim, labels = present
            absent = torch.ones(shape_of(node)[dim], dtype=torch.bool)
            absent[labels] = False
            constants = torch.where(on_dimension(absent, dim, constants.ndim), constants, 0.0)
        if not bool(constants.any()):
            return source
        for dim, labels in layout.items():
            constants = constants if constants.shape[dim] == 1 else constants.index_select(dim, labels)
        return build.say("add", source, build.tensor("constant", build.like(node, constants), trainable=True))


def _as_summed(build: "Rebuild", node: fx.Node, read: fx.Node) -> fx.Node:
    """An operand of a sum, of the type of the sum: a residual stream may be more precise than its branches."""
    same = read.meta["dtype"] == node.meta["dtype"]
    return build.new[read] if same else build.say("to", build.new[read], dtype=node.meta["dtype"])


def _own(common: "Layout", node: fx.Node, read: fx.Node) -> "Layout":
    """The layout of a result in the dimensions of an operand that is broadcast to it."""
    shift = len(shape_of(node)) - len(shape_of(read))
    return {dim - shift: labels for dim, labels in common.items() if dim >= shift and shape_of(read)[dim - shift] > 1}
