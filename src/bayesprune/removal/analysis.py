"""What of a network is constant, and what of it is needed.

Forward: which elements of each activation are the same for every input, because of zeros in the weights. Backward: which elements must
exist physically for the outputs to come out right. What is not needed can be removed without changing what the network computes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from bayesprune.removal.status import Known, compressed, known


class Analysis:
    """Facts about the activations of a graph.

    Attributes:
        module: the graph, annotated with shapes.
        rigid: nodes that are taken as black boxes, whatever they compute.
        zeros: elements of results that are taken to be zero, whatever is computed.
        known: what is known of a node's result.
        needed: which elements of a node's result are needed, as a status; nodes of which nothing is needed are missing.
        constant: nodes of which something is needed but all of that is known.
    """

    def __init__(
        self, module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset(), zeros: Mapping[fx.Node, Tensor] | None = None
    ) -> None:
        self.module = module
        self.zeros = zeros or {}
        self.rigid = rigid | shared_layers(module)
        self.known: dict[fx.Node, Known] = {}
        self.needed: dict[fx.Node, Tensor] = {}
        self.constant: set[fx.Node] = set()

    def run(self) -> "Analysis":
        from bayesprune.removal.rules import rule_for

        nodes = list(self.module.graph.nodes)
        for node in nodes:
            found = rule_for(self, node).known(self, node)
            if node in self.zeros:
                found = _with_zeros(found, self.zeros[node])
            if found is not None:
                self.known[node] = found
        for node in reversed(nodes):
            if node.op == "output":
                needed = torch.tensor(True)
            elif node in self.needed:
                needed = self.needed[node]
            else:
                continue
            if node in self.known and self._is_constant(node, needed):
                self.constant.add(node)
                continue
            for read, part in rule_for(self, node).needs(self, node, needed):
                self._need(read, part)
        return self

    def _is_constant(self, node: fx.Node, needed: Tensor) -> bool:
        return node.op != "get_attr" and not bool((needed & ~self.known[node].mask).any())

    def _need(self, node: fx.Node, part: Tensor) -> None:
        if not bool(part.any()):
            return
        before = self.needed.get(node)
        self.needed[node] = part if before is None else compressed(before | part)

    def layer(self, node: fx.Node) -> nn.Module:
        return self.module.get_submodule(str(node.target))

    def unknown(self, node: fx.Node, part: Tensor) -> Tensor:
        """The part of the elements that is not known."""
        return part & ~self.known[node].mask if node in self.known else part

    def tensor(self, node: fx.Node) -> Tensor:
        """The parameter or buffer behind a node."""
        owner, _, name = str(node.target).rpartition(".")
        value = getattr(self.module.get_submodule(owner), name)
        assert isinstance(value, Tensor)
        return value


def _with_zeros(fact: Known | None, zero: Tensor) -> Known | None:
    if fact is None:
        return known(zero, torch.zeros_like(zero, dtype=torch.float64))
    return known(fact.mask | zero, torch.where(zero, 0.0, fact.value))


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's result for the example."""
    shape: tuple[int, ...] = node.meta["shape"]
    return shape


def is_tensor(node: object) -> bool:
    return isinstance(node, fx.Node) and "shape" in node.meta


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node reads."""
    return [read for read in node.all_input_nodes if "shape" in read.meta]


def everything(node: fx.Node) -> Tensor:
    """The status that holds for every element of a node's result."""
    return torch.ones([1] * len(shape_of(node)), dtype=torch.bool) if "shape" in node.meta else torch.tensor(True)


def shared_layers(module: fx.GraphModule) -> frozenset[fx.Node]:
    """Layers with parameters that another call or attribute also uses: they keep their shape."""
    users: dict[int, set[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            parameters: list[Tensor] = list(module.get_submodule(str(node.target)).parameters())
        elif node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            parameters = [getattr(module.get_submodule(owner), name)]
        else:
            continue
        for parameter in parameters:
            users.setdefault(id(parameter), set()).add(node)
    calls = {node for nodes in users.values() if len(nodes) > 1 for node in nodes}
    return frozenset(calls)
