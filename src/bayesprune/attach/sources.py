"""Which layer computes the units of an activation, and who reads the units of a layer."""

import torch
from torch import fx

from bayesprune.removal.analysis import Analysis, is_number, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.elementwise import Activation, Combination
from bayesprune.removal.rules.layers import Linear
from bayesprune.removal.rules.movement import Movement
from bayesprune.removal.rules.norms import ChannelNorm, SpatialOperation


class Sources:
    """What computes each activation, seen through whatever treats its elements one by one.

    Arithmetic with numbers is seen through, and so are element-wise combinations of tensors that all come from one layer, as in an
    activation that is written out. In a product of several layers, the first linear one stands for all: they have the same units.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._sources: dict[fx.Node, fx.Node] = {}
        for node in analysis.module.graph.nodes:
            self._sources[node] = self._find(node)

    def of(self, node: fx.Node) -> fx.Node:
        """What computes an activation."""
        return self._sources[node]

    def path(self, node: fx.Node) -> list[fx.Node]:
        """The operations through which an activation was seen, the one nearest to its source first."""
        source = self._sources[node]
        path: list[fx.Node] = []
        while node is not source:
            path.insert(0, node)
            node = next(read for read in tensor_inputs(node) if self._sources[read] is source)
        return path

    def reads(self, layer: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
        """Who reads the units of a layer, and from which activation."""
        seen_through = [node for node, source in self._sources.items() if source is layer]
        return [(user, node) for node in seen_through for user in node.users if self._sources[user] is not layer and not is_number(user)]

    def _find(self, node: fx.Node) -> fx.Node:
        rule = rule_for(self.analysis, node)
        before = [self._sources[read] for read in tensor_inputs(node)]
        if isinstance(rule, Combination):
            linear = [source for source in before if isinstance(rule_for(self.analysis, source), Linear)]
            if node.target is torch.mul and linear:
                return linear[0]
            return before[0] if len(set(before)) == 1 else node
        averaged = getattr(node.target, "__name__", "") == "mean"
        seen_through = averaged or isinstance(rule, (Activation, ChannelNorm, Movement, SpatialOperation))
        return before[0] if seen_through and len(before) == 1 else node
