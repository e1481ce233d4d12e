"""The compacted network with adaptive layers in the place of those behind masks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.lightening import assembled, free_paths, lightened
from bayesprune.adaptive.mask_rules import find_rule
from bayesprune.adaptive.native_layers import NativeLayer, native_layer
from bayesprune.adaptive.segments import Segment, Unused, find_segments


@dataclass(frozen=True)
class Rewritten:
    """A network in its adaptive form.

    Attributes:
        network: computes what the compacted one does, and shares its layers.
        masks: computes the masks of all segments, of shape (batch, units) each.
        segments: the places where units can be left out.
        layers: what computes each of them.
        natives: what computes those of them for which there may be native code, None for the others.
        unused: the masks that no layer gains from.
        shapes: of the activation before each mask, and of the result of each layer, on the example.
    """

    network: fx.GraphModule
    masks: fx.GraphModule
    segments: list[Segment]
    layers: list[AdaptiveLayer]
    natives: list[NativeLayer | None]
    unused: list[Unused]
    shapes: list[tuple[torch.Size, torch.Size]]

    def with_layers(self, chosen: Collection[AdaptiveLayer], natively: Collection[NativeLayer] = ()) -> fx.GraphModule:
        """The network with some of the adaptive layers, or with native code for them, and all others as in the compacted one."""
        graph, new = _copied(self.network.graph)
        attributes: dict[str, Any] = {}
        inputs: tuple[fx.Node, ...]
        names = free_paths(self.network, "adaptive")
        for name, segment, layer, native in zip(names, self.segments, self.layers, self.natives, strict=False):
            if native is not None and native in natively:
                attributes[name], inputs = native, (new[native.read],)
            elif layer in chosen:
                attributes[name], inputs = layer, (new[segment.read], new[segment.mask])
            else:
                continue
            consumer = new[segment.consumer]
            with graph.inserting_before(consumer):
                replacement = graph.call_module(name, inputs)
            consumer.replace_all_uses_with(replacement)
            new[segment.consumer] = replacement
        return assembled(graph, self.network, attributes)


def rewrite(compacted: fx.GraphModule, inputs: tuple[Any, ...]) -> Rewritten:
    """The adaptive form of a compacted network, which is not changed.

    Args:
        compacted: what ``compact`` gave, in evaluation mode.
        inputs: that it takes.
    """
    network = lightened(compacted, _shapes(compacted, inputs))
    nodes = {node.name: node for node in network.graph.nodes}
    shapes = _shapes(network, inputs)
    segments, unused = find_segments(network, shapes)
    layers = [AdaptiveLayer(segment, decides=_decides(network.graph, nodes[segment.consumer])) for segment in segments]
    natives = [native_layer(layer, find_rule(network, segment)) for layer, segment in zip(layers, segments, strict=True)]
    graph, new = _copied(network.graph)
    (result,) = (node for node in graph.nodes if node.op == "output")
    result.args = (tuple(new[segment.mask] for segment in segments),)
    masks = assembled(graph, network, {})
    found = [(shapes[nodes[segment.read]], shapes[nodes[segment.consumer]]) for segment in segments]
    return Rewritten(network, masks, segments, layers, natives, unused, found)


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


@torch.no_grad()
def _shapes(network: fx.GraphModule, inputs: tuple[Any, ...]) -> dict[fx.Node, torch.Size]:
    interpreter = _Shapes(network)
    interpreter.run(*inputs)
    return interpreter.found


def _copied(graph: fx.Graph) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """A copy, and its nodes by the names that they have in the original."""
    copy, new = fx.Graph(), dict[fx.Node, fx.Node]()
    result = copy.graph_copy(graph, new)
    copy.output(result)
    return copy, {node.name: each for node, each in new.items()}


def _decides(graph: fx.Graph, consumer: fx.Node) -> bool:
    """Whether the result depends on no input but through this node; on their sizes it may."""
    (result,) = (node for node in graph.nodes if node.op == "output")
    seen, ahead = set[fx.Node](), [result]
    while ahead:
        node = ahead.pop()
        if node is consumer or node in seen or (node.op == "call_method" and node.target == "size"):
            continue
        if node.op == "placeholder":
            return False
        seen.add(node)
        ahead += node.all_input_nodes
    return True
