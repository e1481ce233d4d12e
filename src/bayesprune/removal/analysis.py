"""What is known about the activations of a network, and small questions that all rules ask of its graph."""

import torch
from torch import Tensor, fx, nn

from bayesprune.removal.status import Known


class Analysis:
    """Facts about the activations of a graph.

    Attributes:
        module: the graph, annotated with shapes.
        rigid: nodes that are taken as black boxes, whatever they compute.
        known: what is known of a node's result.
        needed: which elements of a node's result are needed, as a status; nodes of which nothing is needed are missing.
        constant: nodes of which something is needed but all of that is known.
    """

    def __init__(self, module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset()) -> None:
        self.module = module
        self.rigid = rigid | shared_layers(module)
        self.known: dict[fx.Node, Known] = {}
        self.needed: dict[fx.Node, Tensor] = {}
        self.constant: set[fx.Node] = set()

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


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's result for the example."""
    shape: tuple[int, ...] = node.meta["shape"]
    return shape


def is_tensor(node: object) -> bool:
    """Whether an argument is a node whose result is a tensor."""
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
