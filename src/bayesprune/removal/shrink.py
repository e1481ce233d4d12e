"""``shrink``: the smallest network that the zeros in the weights allow.

Forward, rules tell which elements of each activation are the same for every input. Backward, they tell which elements must exist for the
outputs to come out right. Then the network is written anew with those elements only.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, is_number
from bayesprune.removal.rebuild import CannotRemoveError, Rebuild
from bayesprune.removal.rules import rule_for
from bayesprune.removal.sharing import disagreement
from bayesprune.removal.status import Known, anywhere, compressed, known


def shrink(module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset()) -> tuple[fx.GraphModule, Analysis]:
    """A smaller graph that computes the same, and the analysis it rests on.

    A node that turns out to need its whole inputs, or else the one that asks for less of them than there is, is taken as a black box, and
    the rest is done again. So are the calls of a layer that do not need the same of it.
    """
    while True:
        analysis = analyse(module, rigid)
        call = disagreement(analysis)
        if call is not None:
            rigid = rigid | {call}
            continue
        try:
            return rebuild(analysis), analysis
        except CannotRemoveError as obstacle:
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
) -> Analysis:
    """What is known and what is needed of every activation.

    Args:
        module: a traced network.
        rigid: nodes to take as black boxes.
        zeros: elements of activations to take as zero, as statuses.
        baseline: an analysis of the same network without the zeros, from which everything is taken that they do not reach.
        generic: ask what holds for any numbers in the layers, rather than for those that are there.
    """
    analysis = Analysis(module, rigid, generic) if baseline is None else baseline.anew()
    nodes = list(module.graph.nodes)
    for node in nodes:
        _find_known(analysis, node, zeros or {}, baseline)
    for node in reversed(nodes):
        _find_needs(analysis, node, baseline)
    return analysis


def _find_known(analysis: Analysis, node: fx.Node, zeros: Mapping[fx.Node, Tensor], baseline: Analysis | None) -> None:
    if baseline is not None and node not in zeros and all(_same(analysis.known, baseline.known, read) for read in node.all_input_nodes):
        found = baseline.known.get(node)
    else:
        found = rule_for(analysis, node).known(analysis, node)
        if node in zeros:
            found = _with_zeros(found, zeros[node])
        found = None if found is None else found.wherever(node.meta.get("resizes", ()))
    if found is not None:
        analysis.known[node] = found


def _find_needs(analysis: Analysis, node: fx.Node, baseline: Analysis | None) -> None:
    """What is needed of a node, as its users say, and what it needs in turn."""
    if baseline is not None and all(_same(analysis.parts, baseline.parts, user) for user in node.users):
        needed = baseline.needed.get(node)
        if all(_same(analysis.known, baseline.known, each) for each in (node, *node.all_input_nodes)):
            if needed is not None:
                analysis.needed[node] = needed
            if node in baseline.constant:
                analysis.constant.add(node)
            if node in baseline.parts:
                analysis.parts[node] = baseline.parts[node]
            return
    else:
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
    before = {} if baseline is None else baseline.parts.get(node, {})
    unchanged = parts.keys() == before.keys() and all(torch.equal(part, before[read]) for read, part in parts.items())
    analysis.parts[node] = before if unchanged else parts


def _same(now: Mapping[fx.Node, Any], before: Mapping[fx.Node, Any], node: fx.Node) -> bool:
    return now.get(node) is before.get(node)


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


def _with_zeros(fact: Known | None, zero: Tensor) -> Known | None:
    if fact is None:
        return known(zero, torch.zeros_like(zero, dtype=torch.float64))
    return known(fact.mask | zero, torch.where(zero, 0.0, fact.value))
