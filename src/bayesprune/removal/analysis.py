"""What is known about the activations of a network, and small questions that all rules ask of its graph."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.removal.generic import stand_in
from bayesprune.removal.sharing import sharing
from bayesprune.removal.status import Known


class Analysis:
    """Facts about the activations of a graph.

    Attributes:
        module: the graph, annotated with shapes.
        rigid: nodes that are taken as black boxes, whatever they compute.
        sized: constant nodes that are computed in part all the same, for their size: the indices that are taken as unknown.
        calls: the calls of a layer that is called several times, for each of them; if one is rigid, all are.
        generic: whether the numbers in the layers are taken for any others.
        known: what is known of a node's result.
        needed: which elements of a node's result are needed, as a status; nodes of which nothing is needed are missing.
        constant: nodes of which something is needed but all of that is known.
        parts: which elements of its inputs a node needs; nodes of which nothing is to be computed are missing.
        rules: the rule of each node that was asked for.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        rigid: frozenset[fx.Node] = frozenset(),
        generic: bool = False,
        sized: Mapping[fx.Node, frozenset[int]] | None = None,
    ) -> None:
        self.module, self.sized = module, sized or {}
        tied, self.calls = sharing(module)
        self.rigid = rigid | tied | {other for node in rigid for other in self.calls.get(node, ())}
        self.generic = generic
        layers = {node: module.get_submodule(str(node.target)) for node in module.graph.nodes if node.op == "call_module"}
        self._layers = {node: stand_in(layer) for node, layer in layers.items()} if generic else layers
        self.known: dict[fx.Node, Known] = {}
        self.needed: dict[fx.Node, Tensor] = {}
        self.constant: set[fx.Node] = set()
        self.parts: dict[fx.Node, dict[fx.Node, Tensor]] = {}
        self.rules: dict[fx.Node, Any] = {}

    def copy(self) -> "Analysis":
        """The same facts, which may then become others."""
        other = copy.copy(self)
        other.known, other.needed, other.constant, other.parts = dict(self.known), dict(self.needed), set(self.constant), dict(self.parts)
        return other

    def layer(self, node: fx.Node) -> nn.Module:
        """The layer that a node calls."""
        return self._layers[node]

    def reads(self, node: fx.Node, weight: Tensor) -> Tensor:
        """Which inputs (of its group) each output of a layer reads: where its weight is not zero.

        Remembered with the module, from analysis to analysis, as long as the layer has the same weight.

        Args:
            node: calls the layer.
            weight: of the layer, outputs first.
        """
        if self.generic:
            return torch.ones(weight.shape[:2], dtype=torch.bool)
        remembered: dict[fx.Node, tuple[Tensor, int, Tensor]] = self.module.meta.setdefault("reads", {})
        held = self.layer(node).weight
        assert isinstance(held, Tensor)
        version = 0 if held.is_inference() else held._version
        if node in remembered and remembered[node][0] is held and remembered[node][1] == version:
            return remembered[node][2]
        pattern = (weight != 0).cpu() if weight.ndim == 2 else (weight != 0).flatten(2).any(dim=2).cpu()
        remembered[node] = (held, version, pattern)
        return pattern

    def unknown(self, node: fx.Node, part: Tensor) -> Tensor:
        """The part of the elements that is not known."""
        return part & ~self.known[node].mask if node in self.known else part

    def tensor(self, node: fx.Node) -> Tensor:
        """The parameter or buffer behind a node."""
        owner, _, name = str(node.target).rpartition(".")
        value = getattr(self.module.get_submodule(owner), name)
        assert isinstance(value, Tensor)
        return value


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's result for the example."""
    shape: tuple[int, ...] = node.meta["shape"]
    return shape


def is_tensor(node: object) -> bool:
    """Whether an argument is a node whose result is a tensor."""
    return isinstance(node, fx.Node) and "shape" in node.meta


def is_number(node: fx.Node) -> bool:
    """Whether a node's result is a number, such as a size."""
    return "value" in node.meta


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node reads."""
    return [read for read in node.all_input_nodes if "shape" in read.meta]


def everything(node: fx.Node) -> Tensor:
    """The status that holds for every element of a node's result."""
    return torch.ones([1] * len(shape_of(node)), dtype=torch.bool) if "shape" in node.meta else torch.tensor(True)
