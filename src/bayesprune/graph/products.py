"""Matrix products with a parameter as the linear layers they are: ``x @ W + b``, ``x @ W.T``, the ``Conv1D`` of GPT-2.

Units leave through a layer, whatever the orientation in which the model holds its weight.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from torch import Tensor, fx, nn

from bayesprune.graph.functional_layers import adopted_linear, layer_path
from bayesprune.graph.vocabulary import FUNCTIONS


@dataclass(frozen=True)
class _Product:
    """A product of an activation with a parameter.

    Attributes:
        node: what computes it, without the bias.
        weight: the parameter.
        inputs_first: whether the parameter holds its inputs in its first dimension.
        bias: the parameter that is added, if there is one.
        result: what computes it with the bias.
    """

    node: fx.Node
    weight: fx.Node
    inputs_first: bool
    bias: fx.Node | None
    result: fx.Node

    @property
    def read(self) -> fx.Node:
        """The activation; that of a product which has become a layer meanwhile is the layer's."""
        (read, *_) = self.node.args
        assert isinstance(read, fx.Node)
        return read


class Products:
    """The products of a graph that are layers. One is left as it is where its parameter is also used in another way.

    Args:
        graph: in the vocabulary; it is rewritten.
        tensors: what is behind its attribute nodes.
        origins: the node of the recorded graph, which knows in which module it is called, for each node.
        reserved: paths of the model's modules, which are no names for others.
    """

    def __init__(
        self, graph: fx.Graph, tensors: Mapping[fx.Node, Tensor], origins: Mapping[fx.Node, fx.Node], reserved: Container[str] = ()
    ) -> None:
        self.graph, self.tensors, self.origins, self.reserved = graph, tensors, origins, reserved
        self.inputs_first: set[str] = set()
        """Paths of layers whose weight the model holds the other way round."""

    def write(self, attributes: dict[str, object]) -> None:
        """Let the products be calls of layers, which are added to the attributes of the graph."""
        uses = self._uses(attributes)
        alike: dict[tuple[int, bool], list[_Product]] = {}
        for product in self._found():
            alike.setdefault((id(self.tensors[product.weight]), product.inputs_first), []).append(product)
        for (weight, _), products in alike.items():
            if uses[weight] == len(products):
                self._write(products, self._shares_bias(products, uses), attributes)

    def _write(self, products: list[_Product], with_bias: bool, attributes: dict[str, object]) -> None:
        held = self.tensors[products[0].weight]
        # In the model's memory, and one parameter for all calls, by which they are known as calls of one layer.
        weight = nn.Parameter(held.detach().t(), requires_grad=held.requires_grad) if products[0].inputs_first else held
        for product in products:
            bias = None if product.bias is None or not with_bias else self.tensors[product.bias]
            replaced = product.node if bias is None else product.result
            origin = self.origins.get(replaced) or self.origins.get(product.node)
            path = layer_path(str(product.weight.target), product.node.name, origin, attributes, self.reserved)
            attributes[path] = adopted_linear(weight, bias)
            with self.graph.inserting_before(replaced):
                layer = self.graph.call_module(path, (product.read,))
            layer.meta = dict(replaced.meta)
            replaced.replace_all_uses_with(layer)
            if product.inputs_first:
                self.inputs_first.add(path)

    def _found(self) -> list[_Product]:
        found: list[_Product] = []
        computed: set[fx.Node] = set()
        """What depends on the network's inputs: a product of parameters alone is a weight, not an activation."""
        for node in self.graph.nodes:
            if node.op == "placeholder" or not computed.isdisjoint(node.all_input_nodes):
                computed.add(node)
            product = self._product(node)
            if product is not None and product.read in computed:
                found.append(product)
        return found

    def _product(self, node: fx.Node) -> _Product | None:
        if node.target not in (FUNCTIONS["matmul"].target, FUNCTIONS["linear"].target):
            return None
        read, matrix, *rest = node.args
        held = self._matrix(matrix)
        if held is None or not isinstance(read, fx.Node):
            return None
        weight, turned = held
        inputs_first = turned == (node.target == FUNCTIONS["linear"].target)
        if any(each is not None for each in rest):
            bias = self._bias(rest[0], weight, inputs_first)
            return None if bias is None else _Product(node, weight, inputs_first, bias, node)
        added = self._added(node)
        bias = None if added is None else self._bias(added[1], weight, inputs_first)
        return _Product(node, weight, inputs_first, bias, node if added is None or bias is None else added[0])

    def _matrix(self, node: object) -> tuple[fx.Node, bool] | None:
        """The parameter that a node stands for, if it is a matrix, and whether the node is its transpose."""
        if not isinstance(node, fx.Node):
            return None
        turned = _is_transpose(node)
        weight = node.args[0] if turned else node
        tensor = self.tensors.get(weight) if isinstance(weight, fx.Node) else None
        if not isinstance(tensor, nn.Parameter) or tensor.ndim != 2 or not tensor.is_floating_point():
            return None
        assert isinstance(weight, fx.Node)
        return weight, turned

    def _bias(self, node: object, weight: fx.Node, inputs_first: bool) -> fx.Node | None:
        tensor = self.tensors.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(tensor, nn.Parameter) or tensor.dtype != self.tensors[weight].dtype:
            return None
        assert isinstance(node, fx.Node)
        return node if tensor.shape == (self.tensors[weight].shape[1 if inputs_first else 0],) else None

    def _added(self, node: fx.Node) -> tuple[fx.Node, object] | None:
        """The sum in which alone a product is used, and what is added to it."""
        users = list(node.users)
        if len(users) != 1 or users[0].target is not FUNCTIONS["add"].target or users[0].kwargs:
            return None
        others = [each for each in users[0].args if each is not node]
        return (users[0], others[0]) if len(others) == 1 else None

    def _uses(self, attributes: Mapping[str, object]) -> Counter[int]:
        """How often each tensor is read, by identity; transposes of it count for it."""
        uses: Counter[int] = Counter()
        for node in self.graph.nodes:
            if node in self.tensors:
                uses[id(self.tensors[node])] += sum(len(user.users) if _is_transpose(user) else 1 for user in node.users)
            layer = attributes[str(node.target)] if node.op == "call_module" else None
            if isinstance(layer, nn.Module):
                uses.update(map(id, layer.parameters()))
        return uses

    def _shares_bias(self, products: list[_Product], uses: Counter[int]) -> bool:
        """Whether all of these products add the same bias, and nobody else reads it."""
        biases = {id(None if product.bias is None else self.tensors[product.bias]) for product in products}
        return len(biases) == 1 and uses[biases.pop()] == len(products)


def _is_transpose(node: fx.Node) -> bool:
    """Whether a node swaps the dimensions of a matrix."""
    if node.target == FUNCTIONS["transpose"].target:
        return {node.kwargs["dim0"], node.kwargs["dim1"]} in ({0, 1}, {-1, -2}, {0, -1}, {-2, 1})
    return node.target == FUNCTIONS["permute"].target and tuple(node.kwargs["dims"]) in ((1, 0), (-1, -2), (-1, 0), (1, -2))  # type: ignore[arg-type]
