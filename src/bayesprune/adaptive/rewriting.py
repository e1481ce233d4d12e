"""The compacted network with adaptive layers in the place of those behind masks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.lightening import assembled, free_paths, lightened
from bayesprune.adaptive.native_convolutions import PlainConvolution, gated_native, plain_convolutions
from bayesprune.adaptive.native_layers import GatedLayer, NativeLayer
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
        convolutions: all convolutions for which there may be native code, without the masks before them.
        unused: the masks that no layer gains from.
        shapes: of the activation before each mask, and of the result of each layer, on the example.
        read_shapes: of what each of the convolutions reads, by the name of its node.
    """

    network: fx.GraphModule
    masks: fx.GraphModule
    segments: list[Segment]
    layers: list[AdaptiveLayer]
    natives: list[GatedLayer | None]
    convolutions: list[PlainConvolution]
    unused: list[Unused]
    shapes: list[tuple[torch.Size, torch.Size]]
    read_shapes: dict[str, torch.Size]

    def with_layers(self, chosen: Collection[AdaptiveLayer], natively: Collection[NativeLayer] = ()) -> fx.GraphModule:
        """The network with some of the adaptive layers, or with native code for them, and all others as in the compacted one."""
        graph, new = _copied(self.network.graph)
        attributes: dict[str, Any] = {}
        replaced = set[str]()

        def replace(name: str, layer: nn.Module, inputs: tuple[fx.Node, ...], consumer: str, replaces: str) -> None:
            attributes[name] = layer
            with graph.inserting_before(new[consumer]):
                replacement = graph.call_module(name, inputs)
            new[replaces].replace_all_uses_with(replacement)
            new[replaces] = replacement
            replaced.add(consumer)

        names = free_paths(self.network, "adaptive")
        for segment, layer, native in zip(self.segments, self.layers, self.natives, strict=True):
            if native is not None and native in natively:
                replace(next(names), native, (new[native.read],), native.consumer, native.replaces)
            elif layer in chosen:
                replace(next(names), layer, (new[segment.read], new[segment.mask]), segment.consumer, segment.consumer)
        for convolution in self.convolutions:
            if convolution in natively and convolution.consumer not in replaced:
                replace(next(names), convolution, (new[convolution.read],), convolution.consumer, convolution.replaces)
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
    natives = [gated_native(network, segment, layer) for layer, segment in zip(layers, segments, strict=True)]
    graph, new = _copied(network.graph)
    (result,) = (node for node in graph.nodes if node.op == "output")
    result.args = (tuple(new[segment.mask] for segment in segments),)
    masks = assembled(graph, network, {})
    found = [(shapes[nodes[segment.read]], shapes[nodes[segment.consumer]]) for segment in segments]
    convolutions = plain_convolutions(network, shapes)
    read = {each.read: shapes[nodes[each.read]] for each in convolutions}
    return Rewritten(network, masks, segments, layers, natives, convolutions, unused, found, read)


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
