"""The compacted network with adaptive layers in the place of those behind masks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.segments import Segment, Unused, find_segments


@dataclass(frozen=True)
class Rewritten:
    """A network in its adaptive form.

    Attributes:
        network: computes what the compacted one does, and shares its layers.
        masks: computes the masks of all segments, of shape (batch, units) each.
        segments: the places where units can be left out.
        layers: what computes each of them.
        unused: the masks that no layer gains from.
        shapes: of the activation before each mask, and of the result of each layer, on the example.
    """

    network: fx.GraphModule
    masks: fx.GraphModule
    segments: list[Segment]
    layers: list[AdaptiveLayer]
    unused: list[Unused]
    shapes: list[tuple[torch.Size, torch.Size]]


def rewrite(compacted: fx.GraphModule, inputs: tuple[Any, ...]) -> Rewritten:
    """The adaptive form of a compacted network, which is not changed.

    Args:
        compacted: what ``compact`` gave, in evaluation mode.
        inputs: that it takes.
    """
    shapes = _Shapes(compacted)
    with torch.no_grad():
        shapes.run(*inputs)
    segments, unused = find_segments(compacted, shapes.found)
    layers = [AdaptiveLayer(segment, decides=_decides(compacted.graph, segment.consumer)) for segment in segments]
    graph, new = _copied(compacted.graph)
    attributes = nn.Module()
    for number, (segment, layer) in enumerate(zip(segments, layers, strict=True)):
        consumer = new[segment.consumer]
        name = f"adaptive_{number}"
        attributes.add_module(name, layer)
        with graph.inserting_before(consumer):
            replacement = graph.call_module(name, (new[segment.read], new[segment.mask]))
        consumer.replace_all_uses_with(replacement)
        new[segment.consumer] = replacement
    network = _with_graph(compacted, graph, attributes)
    graph, new = _copied(compacted.graph)
    (result,) = (node for node in graph.nodes if node.op == "output")
    result.args = (tuple(new[segment.mask] for segment in segments),)
    masks = _with_graph(compacted, graph, nn.Module())
    found = [(shapes.found[segment.read], shapes.found[segment.consumer]) for segment in segments]
    return Rewritten(network, masks, segments, layers, unused, found)


class _Shapes(fx.Interpreter):
    """Runs a network and takes down the shape of every tensor."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__(network)
        self.found: dict[fx.Node, torch.Size] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n] = result.shape
        return result


def _copied(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    copy, new = fx.Graph(), dict[fx.Node, fx.Node]()
    result = copy.graph_copy(graph, new)
    copy.output(result)
    return copy, new


def _with_graph(compacted: fx.GraphModule, graph: fx.Graph, more: nn.Module) -> fx.GraphModule:
    """A network of the layers of another and some more."""
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    paths = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    found: dict[str, Any] = {}
    for path in paths:
        owner, _, name = path.rpartition(".")
        found[path] = getattr(more, path) if hasattr(more, path) else getattr(compacted.get_submodule(owner), name)
    module = fx.GraphModule(found, graph, "AdaptiveNetwork")
    module.graph.lint()
    return module.eval()


def _decides(graph: fx.Graph, consumer: fx.Node) -> bool:
    """Whether the result depends on no input but through this node; on their sizes it may."""
    (result,) = (node for node in graph.nodes if node.op == "output")
    seen, ahead = set[fx.Node](), [result]
    while ahead:
        node = ahead.pop()
        if node is consumer or node in seen or node.target == "size":
            continue
        if node.op == "placeholder":
            return False
        seen.add(node)
        ahead += node.all_input_nodes
    return True
