"""Where a compacted network multiplies by a mask that depends on the input, and which layer could do with fewer inputs for it.

A mask is what ``compact`` writes for an input-dependent gate: zero for the units that an input does not need. A layer that reads nothing
but masked values, with only operations in between that work on every channel alone and leave zeros zero, needs the other channels alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from bayesprune.graph.binding import function_of
from bayesprune.graph.layer_types import (
    ACTIVATIONS,
    CONVOLUTIONS,
    DROPOUTS,
    LINEARS,
    POOLINGS,
    TRANSPOSED_CONVOLUTIONS,
    positional_dimensions,
)
from bayesprune.graph.vocabulary import ELEMENTWISE, POOLING, pooled_dimensions

Operation: TypeAlias = Callable[[Tensor], Tensor]
"""One that works on every channel alone and leaves zeros zero."""
_MAKE_UNITS = (*LINEARS, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS, nn.Bilinear, nn.Embedding, nn.RNNBase)


@dataclass(frozen=True)
class Segment:
    """A masked activation and the only layer that reads it. Nodes of the graph are given by name, so that they are found in a copy too.

    Attributes:
        name: of the layer.
        layer: a linear layer or a convolution.
        read: the node of the activation before it is masked.
        mask: the node of the mask, of shape (batch, units).
        consumer: the node of the layer.
        path: the nodes in between, the multiplication by the mask first.
        operations: those that are carried out on the channels that are left.
        channel_dim: of the activation; counted from the end for a linear layer, because it has its features there.
        rank: of the activation.
        units: how many the mask has.
        each: how many inputs of the layer belong to a unit: one, or the positions of a channel that is flattened.
        places: the place of each input of the layer among all that all units could have.
        selection: the units that are taken on the way, if not all are.
    """

    name: str
    layer: nn.Module
    read: str
    mask: str
    consumer: str
    path: tuple[str, ...]
    operations: tuple[Operation, ...]
    channel_dim: int
    rank: int
    units: int
    each: int
    places: Tensor
    selection: Tensor | None


@dataclass(frozen=True)
class Unused:
    """A mask that no layer gains from.

    Attributes:
        behind: the layer whose outputs it masks, or ``the input``.
        reason: why.
    """

    behind: str
    reason: str


class _StaysDenseError(Exception):
    """What follows a mask cannot be computed on fewer channels."""


def find_segments(network: fx.GraphModule, shapes: dict[fx.Node, torch.Size]) -> tuple[list[Segment], list[Unused]]:
    """The segments of a compacted network, in its order, and the masks that no layer gains from.

    Args:
        network: what ``compact`` gave.
        shapes: of the result of each node on an example.
    """
    segments, unused = [], []
    masks = {node for node in network.graph.nodes if _is_gate(node)}
    for product in network.graph.nodes:
        found = _masked(product)
        if found is None:
            continue
        masks.discard(_threshold(found[1]))
        try:
            segments.append(_Walk(network, shapes, product, *found).segment())
        except _StaysDenseError as error:
            unused.append(Unused(_masked_layer(network, found[0]), str(error)))
    filled = [mask for mask in network.graph.nodes if mask in masks]
    unused += [Unused(_masked_layer(network, mask), "it is filled up before anything is multiplied by it") for mask in filled]
    return segments, unused


def _masked_layer(network: fx.GraphModule, node: fx.Node) -> str:
    """The name of the last layer before a node that makes units, by the first way back to one."""
    while node.all_input_nodes and not (node.op == "call_module" and isinstance(network.get_submodule(str(node.target)), _MAKE_UNITS)):
        node = next((before for before in node.all_input_nodes if before.op != "get_attr"), node.all_input_nodes[0])
    return "the input" if node.op == "placeholder" else str(node.target)


def word_of(node: Any) -> str | None:
    """The word of the vocabulary that a node speaks."""
    function = function_of(node.op, node.target) if isinstance(node, fx.Node) and node.op in ("call_function", "call_method") else None
    return None if function is None else function.name


def _masked(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What a node multiplies by a mask, and the mask as it is multiplied; None if it does no such thing."""
    if word_of(node) != "mul" or len(node.args) != 2:
        return None
    for read, mask in (node.args, node.args[::-1]):
        if isinstance(read, fx.Node) and isinstance(mask, fx.Node) and _is_mask(mask):
            return read, mask
    return None


def _is_mask(node: fx.Node) -> bool:
    """Whether a node is a threshold that sets all below it to zero, in another shape at most."""
    node = _threshold(node)
    return word_of(node) == "threshold" and bool(node.kwargs.get("value") == 0.0)


def _threshold(mask: fx.Node) -> fx.Node:
    """The node of a mask before it is brought into another shape."""
    while word_of(mask) in ("unsqueeze", "index_select", "to"):
        mask = mask.args[0]  # type: ignore[assignment]
    return mask


def _is_gate(node: fx.Node) -> bool:
    """Whether a node is the threshold that ``compact`` writes for a gate; a model may have others, as activations."""
    return _is_mask(node) and node is _threshold(node) and word_of(node.args[0]) == "minimum"


class _Walk:
    """From a mask to the layer that reads what it masks."""

    def __init__(self, network: fx.GraphModule, shapes: dict[fx.Node, torch.Size], product: fx.Node, read: fx.Node, mask: fx.Node) -> None:
        self.network, self.shapes, self.product, self.read = network, shapes, product, read
        self.spread = mask
        while word_of(mask) == "unsqueeze":
            mask = mask.args[0]  # type: ignore[assignment]
        self.mask = mask
        self.rank = len(shapes[read])
        self.path: list[fx.Node] = []
        self.operations: list[Operation] = []
        self.selection: Tensor | None = None
        self.each = 1

    def segment(self) -> Segment:
        units = self.shapes[self.mask][-1]
        shape, wide = self.shapes[self.spread], self.shapes[self.product]
        dims = [dim for dim in range(1, len(shape)) if shape[dim] == units and wide[dim] == units]
        flat = len(self.shapes[self.mask]) == 2 and shape[0] == wide[0] and shape.numel() == self.shapes[self.mask].numel()
        if not flat or self.shapes[self.read] != wide or len(shape) != self.rank or (units > 1 and len(dims) != 1):
            raise _StaysDenseError("its units are more than channels")
        if wide[0] != self._batch():
            raise _StaysDenseError("an input has several masks")
        self.channel_dim, self.units = (dims or [1])[0], units
        node = self.product
        while True:
            self.path.append(node)
            if len(node.users) != 1:
                raise _StaysDenseError("several operations read it")
            node = next(iter(node.users))
            layer = self._layer(node)
            if isinstance(layer, nn.Linear) or (isinstance(layer, CONVOLUTIONS) and layer.groups == 1):
                return self._arrived(node, layer)
            self._pass(node, layer)

    def _batch(self) -> int:
        tensors = (self.shapes[node] for node in self.network.graph.nodes if node.op == "placeholder" and self.shapes.get(node))
        return next((shape[0] for shape in tensors), 1)

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self.network.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _arrived(self, node: fx.Node, layer: nn.Module) -> Segment:
        rank = len(self.shapes[self.path[-1]])
        convolution = isinstance(layer, CONVOLUTIONS)
        if self.channel_dim != (1 if convolution else rank - 1) or (convolution and rank != layer.weight.ndim):
            raise _StaysDenseError(f"{node.target} mixes other dimensions than that of the units")
        if convolution and layer.padding_mode != "zeros":
            raise _StaysDenseError(f"{node.target} pads with other values than zero")
        chosen = torch.arange(self.units) if self.selection is None else self.selection
        places = chosen[:, None] * self.each + torch.arange(self.each, device=chosen.device)
        return Segment(
            str(node.target),
            layer,
            self.read.name,
            self.mask.name,
            node.name,
            tuple(each.name for each in self.path),
            tuple(self.operations),
            1 if self.rank > 2 and self.channel_dim == 1 else -1,
            self.rank,
            self.units,
            self.each,
            places.flatten(),
            self.selection,
        )

    def _pass(self, node: fx.Node, layer: nn.Module | None) -> None:
        """Go on behind an operation, if it works on every channel alone and leaves zeros zero."""
        word = word_of(node)
        before = self.shapes[self.path[-1]]
        if word == "index_select" and self._is_selection(node):
            index = node.kwargs["index"]
            assert isinstance(index, fx.Node)
            self.selection = self.network.get_buffer(str(index.target)).detach().clone()
            if len(set(self.selection.tolist())) < len(self.selection):
                raise _StaysDenseError(f"{node.name} takes some of its units twice")
        elif isinstance(layer, nn.Flatten) or word == "flatten":
            start, end = (layer.start_dim, layer.end_dim) if isinstance(layer, nn.Flatten) else self._flattened(node)
            if (start, end) != (1, -1) or self.channel_dim != 1:
                raise _StaysDenseError(f"{node.name} mixes channels with other dimensions")
            self.each *= before[2:].numel()
            self.channel_dim = 1
            self.operations.append(_flat)
        else:
            self.operations.append(self._operation(node, layer, word))

    def _mixes_channels(self, positions: int | None) -> bool:
        """Whether a pooling over so many dimensions takes channels for one of them: it accepts inputs without a batch."""
        return positions is not None and positions != len(self.shapes[self.path[-1]]) - 2

    @staticmethod
    def _flattened(node: fx.Node) -> tuple[Any, Any]:
        return node.kwargs.get("start_dim", 0), node.kwargs.get("end_dim", -1)

    def _is_selection(self, node: fx.Node) -> bool:
        """Whether a fixed choice of channels is taken, each once at most."""
        index, dim = node.kwargs.get("index"), node.kwargs.get("dim")
        if not isinstance(index, fx.Node) or index.op != "get_attr" or not isinstance(dim, int) or len(self.path) > 1:
            return False
        return dim % len(self.shapes[self.path[-1]]) == self.channel_dim

    def _operation(self, node: fx.Node, layer: nn.Module | None, word: str | None) -> Operation:
        images = self.channel_dim == 1 and len(self.shapes[self.path[-1]]) > 2
        if layer is not None:
            allowed = (*ACTIVATIONS, *DROPOUTS, *(POOLINGS if images else ()))
            operation: Operation = layer
            fits = isinstance(layer, allowed) and not isinstance(layer, nn.FeatureAlphaDropout)
            fits = fits and not self._mixes_channels(positional_dimensions(layer))
        else:
            fits = word in ELEMENTWISE - {"to"} or (images and word in POOLING and not self._mixes_channels(pooled_dimensions(word)))
            fits = fits and len(node.all_input_nodes) == 1
            operation = _Called(node.target, node.args[1:], dict(node.kwargs), word) if fits else _flat
        if not fits:
            what = type(layer).__name__ if layer is not None else word or str(node.target)
            raise _StaysDenseError(f"{what} ({node.name}) stands between it and the next layer")
        shape = self.shapes[self.path[-1]]
        with torch.no_grad():
            zeros = operation(torch.zeros((1, *shape[1:])))
        if bool((zeros != 0).any()):
            raise _StaysDenseError(f"behind {node.name} its zeros are no zeros any more")
        return operation


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def leaves_vectors_alone(operation: Operation) -> bool:
    """Whether an operation of a segment, in evaluation mode, gives back a vector as it is."""
    return operation is _flat or isinstance(operation, DROPOUTS)


def rectifies(operation: Operation) -> bool:
    """Whether an operation of a segment is a ReLU."""
    return type(operation) is nn.ReLU or (isinstance(operation, _Called) and operation.word == "relu")


def window_of(operation: Operation) -> int | None:
    """The side of the windows whose greatest elements an operation of a segment takes, one beside the other; None if it does not."""
    if type(operation) is not nn.MaxPool2d:
        return None
    side, *others = {*_both(operation.kernel_size), *_both(operation.stride)}
    plain = _both(operation.padding) == (0, 0) and _both(operation.dilation) == (1, 1)
    return side if plain and not others and not operation.ceil_mode and not operation.return_indices else None


def _both(value: int | Sequence[int]) -> tuple[int, ...]:
    """For height and width, where one number may stand for both."""
    return (value, value) if isinstance(value, int) else tuple(value)


@dataclass(frozen=True)
class _Called:
    """What a node does to its only tensor; not a function inside another, which could not be pickled."""

    target: Any
    rest: tuple[Any, ...]
    keywords: Mapping[str, Any]
    word: str | None

    def __call__(self, x: Tensor) -> Tensor:
        function = getattr(x, self.target) if isinstance(self.target, str) else partial(self.target, x)
        return function(*self.rest, **self.keywords)  # type: ignore[no-any-return]
