"""``shrink``: the smallest network that the zeros in the weights allow.

Forward, rules tell which elements of each activation are the same for every input. Backward, they tell which elements must exist for the
outputs to come out right. Then the network is written anew with those elements only.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, everything, is_number, shape_of
from bayesprune.removal.rebuild import CannotRemoveError, Rebuild, SizeUnknownError
from bayesprune.removal.rules import rule_for
from bayesprune.removal.sharing import disagreement
from bayesprune.removal.status import Known, along, anywhere, compressed, known, on_dimension


def shrink(module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset()) -> tuple[fx.GraphModule, Analysis]:
    """A smaller graph that computes the same, and the analysis it rests on.

    A node that turns out to need its whole inputs, or else the one that asks for less of them than there is, is taken as a black box, and
    the rest is done again. So are the calls of a layer that do not need the same of it. A constant whose size only the removed part knew
    is computed in part.
    """
    sized: dict[fx.Node, frozenset[int]] = {}
    while True:
        analysis = analyse(module, rigid, sized=sized)
        call = disagreement(analysis)
        if call is not None:
            rigid = rigid | {call}
            continue
        try:
            return rebuild(analysis), analysis
        except CannotRemoveError as obstacle:
            more = _one_more(analysis, obstacle.node) if isinstance(obstacle, SizeUnknownError) else None
            if more is not None:
                sized = {**sized, obstacle.node: more}
                continue
            blamed = {obstacle.node, obstacle.asked_by} - rigid
            if not blamed:
                raise
            rigid = rigid | {obstacle.node if obstacle.node in blamed else obstacle.asked_by}


def analyse(
    module: fx.GraphModule,
    rigid: frozenset[fx.Node] = frozenset(),
    zeros: Mapping[fx.Node, Tensor] | None = None,
    baseline: Analysis | None = None,
    generic: bool = False,
    sized: Mapping[fx.Node, frozenset[int]] | None = None,
) -> Analysis:
    """What is known and what is needed of every activation.

    Args:
        module: a traced network.
        rigid: nodes to take as black boxes.
        zeros: elements of activations to take as zero, as statuses.
        baseline: an analysis of the same network without the zeros, from which everything is taken that they do not reach.
        generic: ask what holds for any numbers in the layers, rather than for those that are there.
        sized: constant nodes to compute in part, for their size, and which indices of them.
    """
    if baseline is not None:
        return _with(baseline, zeros or {})
    analysis = Analysis(module, rigid, generic, sized)
    nodes = list(module.graph.nodes)
    for node in nodes:
        _find_known(analysis, node, zeros or {})
    for node in reversed(nodes):
        _find_needs(analysis, node)
    return analysis


def _with(baseline: Analysis, zeros: Mapping[fx.Node, Tensor]) -> Analysis:
    """What an analysis becomes with these zeros: only nodes that they reach are looked at again."""
    analysis = baseline.copy()
    places = {node: place for place, node in enumerate(analysis.module.graph.nodes)}
    learned: list[fx.Node] = []
    forward = _Waiting(places, zeros)
    for node in forward:
        _find_known(analysis, node, zeros)
        if analysis.known.get(node) is not baseline.known.get(node):
            learned.append(node)
            forward.add(node.users)
    backward = _Waiting({node: -place for node, place in places.items()}, learned)
    for node in learned:
        backward.add(node.users)
    for node in backward:
        _find_needs(analysis, node, baseline.parts.get(node))
        if analysis.parts.get(node) is not baseline.parts.get(node):
            backward.add(node.all_input_nodes)
    return analysis


class _Waiting:
    """Nodes to look at, each once, in the order of their places; more may be added of later places than the last one's."""

    def __init__(self, places: Mapping[fx.Node, int], nodes: Iterable[fx.Node]) -> None:
        self.places, self.seen, self.queue = places, set[fx.Node](), list[tuple[int, fx.Node]]()
        self.add(nodes)

    def add(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            if node not in self.seen:
                self.seen.add(node)
                heapq.heappush(self.queue, (self.places[node], node))

    def __iter__(self) -> Iterator[fx.Node]:
        while self.queue:
            yield heapq.heappop(self.queue)[1]


def _find_known(analysis: Analysis, node: fx.Node, zeros: Mapping[fx.Node, Tensor]) -> None:
    analysis.known.pop(node, None)
    found = rule_for(analysis, node).known(analysis, node)
    if node in zeros:
        found = _with_zeros(found, zeros[node])
    if found is not None and node in analysis.sized:
        found = _without(found, node, analysis.sized[node])
    fact = None if found is None else found.wherever(node.meta.get("resizes", ()))
    if fact is not None:
        analysis.known[node] = fact


def _find_needs(analysis: Analysis, node: fx.Node, before: dict[fx.Node, Tensor] | None = None) -> None:
    """What is needed of a node, as its users say, and what it needs in turn: the same object as before, where it is the same."""
    analysis.needed.pop(node, None)
    analysis.constant.discard(node)
    analysis.parts.pop(node, None)
    wanted = (analysis.parts[user].get(node) for user in node.users if user in analysis.parts)
    needed = torch.tensor(True) if node.op == "output" or (node in analysis.rigid and is_number(node)) else _together(wanted)
    if needed is None:
        return
    analysis.needed[node] = needed
    if _is_constant(analysis, node, needed):
        analysis.constant.add(node)
        return
    parts: dict[fx.Node, Tensor] = {}
    for read, part in rule_for(analysis, node).needs(analysis, node, needed):
        if bool(part.any()):
            # At another size other indices would be needed, so all are.
            part = anywhere(part, read.meta.get("resizes", ()))
            parts[read] = compressed(parts[read] | part) if read in parts else part
    unchanged = before is not None and parts.keys() == before.keys() and all(torch.equal(parts[read], before[read]) for read in parts)
    analysis.parts[node] = before if before is not None and unchanged else parts


def _together(parts: Iterable[Tensor | None]) -> Tensor | None:
    """What is needed by anyone."""
    present = [part for part in parts if part is not None]
    return None if not present else present[0] if len(present) == 1 else compressed(reduce(torch.logical_or, present))


def rebuild(analysis: Analysis) -> fx.GraphModule:
    """The network with nothing but what is needed.

    Raises:
        CannotRemoveError: a node cannot work with less than its whole inputs.
    """
    build = Rebuild(analysis)
    written = _written(analysis)
    for node in analysis.module.graph.nodes:
        if node in written:
            try:
                rule_for(analysis, node).rebuild(build, node)
            except CannotRemoveError as obstacle:
                obstacle.asked_by = node
                raise
    return build.module()


def _written(analysis: Analysis) -> set[fx.Node]:
    """The nodes of the new network: what is computed, and the numbers that this takes."""
    written: set[fx.Node] = set()
    for node in reversed(analysis.module.graph.nodes):
        computed = node in analysis.needed and node not in analysis.constant
        read = is_number(node) and any(user in written for user in node.users)
        if computed or read or node.op in ("placeholder", "output"):
            written.add(node)
    return written


def _is_constant(analysis: Analysis, node: fx.Node, needed: Tensor) -> bool:
    fact = analysis.known.get(node)
    return fact is not None and node.op != "get_attr" and not bool((needed & ~fact.mask).any())


def _without(fact: Known, node: fx.Node, indices: frozenset[int]) -> Known | None:
    """What is known but for these indices of the first dimension that has one size for all inputs; nothing, if there is none."""
    dim = _steady(node)
    if dim is None:
        return None
    others = torch.tensor([index not in indices for index in range(shape_of(node)[dim])])
    return known(fact.mask & on_dimension(others, dim, len(shape_of(node))), fact.value)


def _one_more(analysis: Analysis, node: fx.Node) -> frozenset[int] | None:
    """Of a constant, the indices to compute for its size: one more that is needed; None if that does not help."""
    there, dim = analysis.sized.get(node, frozenset()), _steady(node)
    if dim is None:
        return None if node in analysis.sized else frozenset()
    size = shape_of(node)[dim]
    # Who reads a constant as a whole does not say that it needs any of it.
    wanted = along(analysis.needed.get(node, everything(node)), dim, size).nonzero().flatten().tolist()
    return next((there | {index} for index in wanted if index not in there), None)


def _steady(node: fx.Node) -> int | None:
    """The first dimension that has several indices, as many for all inputs."""
    return next((dim for dim, size in enumerate(shape_of(node)) if dim not in node.meta["varies"] and size > 1), None)


def _with_zeros(fact: Known | None, zero: Tensor) -> Known | None:
    if fact is None:
        return known(zero, torch.zeros_like(zero, dtype=torch.float64))
    return known(fact.mask | zero, torch.where(zero, 0.0, fact.value))
