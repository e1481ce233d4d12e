"""How a mask follows from what it masks, where all of it is known: what native code needs to compute a layer in one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.adaptive.lightening import attribute_of
from bayesprune.adaptive.native.gated_convolution import Steps
from bayesprune.adaptive.segments import Operation, Segment, leaves_vectors_alone, rectifies, window_of, word_of


@dataclass(frozen=True, eq=False)
class MaskRule:
    """Scale times a vector, or the means of channels, plus shift, but no more than a greatest value, and zero up to the threshold.

    Attributes:
        read: the node of what is masked.
        rectified: whether it is the positive part of that node's result that is masked.
        factors: scale, shift and greatest value, of shape (3, units).
        threshold: what a mask must exceed.
        steps: what is done with images; None for vectors, which a linear layer reads as they are.
    """

    read: str
    rectified: bool
    factors: Tensor
    threshold: float
    steps: Steps | None


def find_rule(network: fx.GraphModule, segment: Segment) -> MaskRule | None:
    """The rule of a segment's mask; None if there is none of this kind, or if native code does not know what stands behind it.

    Args:
        network: a compacted network, without what a call need not do again.
        segment: of it.
    """
    nodes = {node.name: node for node in network.graph.nodes}
    read, mask = nodes[segment.read], nodes[segment.mask]
    found = _factors(network, read, mask, segment.units, images=segment.rank == 4)
    if found is None:
        return None
    threshold = float(mask.kwargs["threshold"])
    if threshold < 0:  # No gate has one below zero, and a model's own may mean something else.
        return None
    factors, activation = found
    before = _rectified(network, read, {activation, nodes[segment.path[0]]})
    if segment.rank == 4:
        steps = _steps(segment.layer, segment.operations, before is not None)
        known = steps is not None
    else:
        steps, known = None, _is_plain_linear(segment)
    return MaskRule((before or read).name, before is not None, factors, threshold, steps) if known else None


def _factors(network: fx.GraphModule, read: fx.Node, mask: fx.Node, units: int, images: bool) -> tuple[Tensor, fx.Node] | None:
    """Scale, shift and greatest value of a mask that follows from what it masks, and the node that reads that."""
    if word_of(mask) != "threshold":
        return None
    bounded: Any = mask.args[0]
    opened, most = bounded.args if word_of(bounded) == "minimum" and len(bounded.args) == 2 else (None, None)
    opened, chosen = _selection(network, opened)
    if getattr(opened, "target", None) is not torch.addcmul or opened.kwargs:
        return None
    shift, source, scale = opened.args
    reader = opened
    if images:
        reader, source = source, _averaged(source)
    same, chosen_too = (read, None) if chosen is None else _selection(network, read)
    tensors = [_tensor(network, each) for each in (scale, shift, most)]
    if source is not same or (chosen is not None and not _equal(chosen, chosen_too)):
        return None
    found = [each.flatten() for each in tensors if each is not None]
    if chosen is not None:
        found[:2] = [each.index_select(0, chosen) for each in found[:2]]
    return (torch.stack(found), reader) if [len(each) for each in found] == [units] * 3 else None


def _is_plain_linear(segment: Segment) -> bool:
    vectors = segment.rank == 2 and segment.each == 1 and isinstance(segment.layer, nn.Linear)
    return vectors and all(map(leaves_vectors_alone, segment.operations))


def _steps(layer: nn.Module, operations: Sequence[Operation], rectified: bool) -> Steps | None:
    """What is done with masked images, if it is a convolution behind ReLUs and one pooling at most."""
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        return None
    windows = [window_of(operation) for operation in operations if not rectifies(operation)]
    if len(windows) > 1 or None in windows:
        return None
    rectify = any(map(rectifies, operations))
    pool = next((window for window in windows if window is not None), 1)
    sizes: Any = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return Steps(rectified, rectify, pool, *sizes)


def _averaged(node: Any) -> Any:
    """The images whose channels a node takes the means of."""
    plain = word_of(node) == "mean" and len(node.args) == 1 and not node.kwargs.get("keepdim") and not node.kwargs.get("dtype")
    return node.args[0] if plain and tuple(node.kwargs.get("dim", ())) == (2, 3) else None


def _selection(network: fx.GraphModule, node: Any) -> tuple[Any, Tensor | None]:
    """What a node takes some of the elements of, and which; the node itself if it does no such thing."""
    if word_of(node) == "index_select" and node.kwargs.get("dim") == 1 and len(node.args) == 1:
        index = _tensor(network, node.kwargs.get("index"))
        if index is not None:
            return node.args[0], index
    return node, None


def _tensor(network: fx.GraphModule, node: Any) -> Tensor | None:
    """The constant that a node stands for; a parameter is none."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found = attribute_of(network, str(node.target))
    return found if isinstance(found, Tensor) and not isinstance(found, nn.Parameter) else None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


def is_relu(network: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node takes the positive part of another."""
    layer = network.get_submodule(str(node.target)) if node.op == "call_module" else None
    return word_of(node) == "relu" or type(layer) is nn.ReLU


def _rectified(network: fx.GraphModule, node: fx.Node, readers: set[fx.Node]) -> fx.Node | None:
    """What a node takes the positive part of, for these readers alone."""
    return node.all_input_nodes[0] if is_relu(network, node) and set(node.users) <= readers else None
