"""``shrink``: the smallest network that the zeros in the weights allow.

Forward, rules tell which elements of each activation are the same for every input. Backward, they tell which elements must exist for the
outputs to come out right. Then the network is written anew with those elements only.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis
from bayesprune.removal.rebuild import CannotRemoveError, Rebuild
from bayesprune.removal.rules import rule_for
from bayesprune.removal.status import Known, compressed, known


def shrink(module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset()) -> tuple[fx.GraphModule, Analysis]:
    """A smaller graph that computes the same, and the analysis it rests on.

    A node that turns out to need its whole inputs is taken as a black box, and the rest is done again.
    """
    while True:
        analysis = analyse(module, rigid)
        try:
            return rebuild(analysis), analysis
        except CannotRemoveError as obstacle:
            if obstacle.node in rigid:
                raise
            rigid = rigid | {obstacle.node}


def analyse(module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset(), zeros: Mapping[fx.Node, Tensor] | None = None) -> Analysis:
    """What is known and what is needed of every activation.

    Args:
        module: a traced network.
        rigid: nodes to take as black boxes.
        zeros: elements of activations to take as zero, as statuses.
    """
    analysis = Analysis(module, rigid)
    nodes = list(module.graph.nodes)
    for node in nodes:
        found = rule_for(analysis, node).known(analysis, node)
        if zeros is not None and node in zeros:
            found = _with_zeros(found, zeros[node])
        if found is not None:
            analysis.known[node] = found
    for node in reversed(nodes):
        needed = torch.tensor(True) if node.op == "output" else analysis.needed.get(node)
        if needed is None:
            continue
        if _is_constant(analysis, node, needed):
            analysis.constant.add(node)
            continue
        for read, part in rule_for(analysis, node).needs(analysis, node, needed):
            if bool(part.any()):
                before = analysis.needed.get(read)
                analysis.needed[read] = part if before is None else compressed(before | part)
    return analysis


def rebuild(analysis: Analysis) -> fx.GraphModule:
    """The network with nothing but what is needed.

    Raises:
        CannotRemoveError: a node cannot work with less than its whole inputs.
    """
    build = Rebuild(analysis)
    for node in analysis.module.graph.nodes:
        computed = node in analysis.needed and node not in analysis.constant
        if computed or node.op in ("placeholder", "output") or "value" in node.meta:
            rule_for(analysis, node).rebuild(build, node)
    return build.module()


def _is_constant(analysis: Analysis, node: fx.Node, needed: Tensor) -> bool:
    fact = analysis.known.get(node)
    return fact is not None and node.op != "get_attr" and not bool((needed & ~fact.mask).any())


def _with_zeros(fact: Known | None, zero: Tensor) -> Known | None:
    if fact is None:
        return known(zero, torch.zeros_like(zero, dtype=torch.float64))
    return known(fact.mask | zero, torch.where(zero, 0.0, fact.value))
