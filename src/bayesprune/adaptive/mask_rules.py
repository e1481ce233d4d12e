"""How the mask of a vector follows from the vector, where all of it is known: what native code needs to compute a layer in one call."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.adaptive.segments import Segment, leaves_vectors_alone, word_of


@dataclass(frozen=True, eq=False)
class MaskRule:
    """The mask of a vector: scale times its values plus shift, but no more than a greatest value, and zero up to the threshold.

    Attributes:
        read: the node of the vector.
        rectified: whether it is the positive part of that node's result that is read.
        factors: scale, shift and greatest value, of shape (3, units).
        threshold: what a mask must exceed.
    """

    read: str
    rectified: bool
    factors: Tensor
    threshold: float


def find_rule(network: fx.GraphModule, segment: Segment) -> MaskRule | None:
    """The rule of a segment's mask; None if there is none of this kind, or if more than a linear layer stands behind it.

    Args:
        network: a compacted network, without what a call need not do again.
        segment: of it.
    """
    vectors = segment.rank == 2 and segment.each == 1 and isinstance(segment.layer, nn.Linear)
    if not vectors or not all(map(leaves_vectors_alone, segment.operations)):
        return None
    nodes = {node.name: node for node in network.graph.nodes}
    read, mask = nodes[segment.read], nodes[segment.mask]
    bounded: Any = mask.args[0]
    opened, most = bounded.args if word_of(bounded) == "minimum" else (None, None)
    opened, chosen = _selection(network, opened)
    if getattr(opened, "target", None) is not torch.addcmul:
        return None
    shift, source, scale = opened.args
    same, chosen_too = (read, None) if chosen is None else _selection(network, read)
    tensors = [_tensor(network, each) for each in (scale, shift, most)]
    if source is not same or (chosen is not None and not _equal(chosen, chosen_too)) or any(each is None for each in tensors):
        return None
    found = [each.flatten() for each in tensors if each is not None]
    if chosen is not None:
        found[:2] = [each.index_select(0, chosen) for each in found[:2]]
    if any(len(each) != segment.units for each in found):
        return None
    before = _rectified(network, read, {opened, nodes[segment.path[0]]})
    return MaskRule((before or read).name, before is not None, torch.stack(found), float(mask.kwargs["threshold"]))


def _selection(network: fx.GraphModule, node: Any) -> tuple[Any, Tensor | None]:
    """What a node takes some of the elements of, and which; the node itself if it does no such thing."""
    if word_of(node) == "index_select" and node.kwargs.get("dim") == 1 and len(node.args) == 1:
        index = _tensor(network, node.kwargs.get("index"))
        if index is not None:
            return node.args[0], index
    return node, None


def _tensor(network: fx.GraphModule, node: Any) -> Tensor | None:
    """The constant that a node stands for."""
    return network.get_buffer(str(node.target)) if isinstance(node, fx.Node) and node.op == "get_attr" else None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


def _rectified(network: fx.GraphModule, node: fx.Node, readers: set[fx.Node]) -> fx.Node | None:
    """What a node takes the positive part of, for these readers alone."""
    layer = network.get_submodule(str(node.target)) if node.op == "call_module" else None
    if (word_of(node) == "relu" or type(layer) is nn.ReLU) and set(node.users) <= readers:
        return node.all_input_nodes[0]
    return None
