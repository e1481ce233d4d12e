"""Layers that are called several times: what one call no longer needs can go only if no other call needs it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from bayesprune.graph.layer_types import CONVOLUTIONS, LINEARS, TRANSPOSED_CONVOLUTIONS
from bayesprune.removal.status import along

if TYPE_CHECKING:
    from bayesprune.removal.analysis import Analysis


def sharing(module: fx.GraphModule) -> tuple[frozenset[fx.Node], dict[fx.Node, tuple[fx.Node, ...]]]:
    """Which nodes of a graph use the same tensors.

    Returns:
        The nodes that share some tensors with others in another way than by calling one layer: they keep their shape. And for each call of
        a layer that is called several times, all of its calls.
    """
    tensors = {node: tuple(map(id, _tensors(module, node))) for node in module.graph.nodes if node.op in ("call_module", "get_attr")}
    users: dict[int, list[fx.Node]] = {}
    for node, own in tensors.items():
        for tensor in own:
            users.setdefault(tensor, []).append(node)
    tied, calls = set(), {}
    for node, own in tensors.items():
        together = dict.fromkeys(user for tensor in own for user in users[tensor])
        if len(together) < 2:
            continue
        kind = _kind(module, node)
        if kind is not None and all(tensors[other] == own and _kind(module, other) == kind for other in together):
            calls[node] = tuple(together)
        else:
            tied.add(node)
    return frozenset(tied), calls


def disagreement(analysis: "Analysis") -> fx.Node | None:
    """A call of a layer that needs other channels of it than another call does; None if all agree."""
    for node, calls in analysis.calls.items():
        if node in analysis.rigid or node not in analysis.parts or not _has_channels(analysis.layer(node)):
            continue
        own = _channels(analysis, node)
        for other in calls[: calls.index(node)]:
            if other in analysis.parts and not all(map(torch.equal, own, _channels(analysis, other))):
                return node
    return None


def _channels(analysis: "Analysis", node: fx.Node) -> list[Tensor]:
    """Which channels of its result, and of what it reads, a call of a layer needs."""
    dim = -1 if isinstance(analysis.layer(node), nn.Linear) else 1
    needed = [(node, analysis.needed[node]), *analysis.parts[node].items()]
    return [along(part, dim, each.meta["shape"][dim]) for each, part in needed]


def _has_channels(layer: nn.Module) -> bool:
    """Whether a layer has a number for each channel, rather than one for all."""
    return any(tensor.numel() > 1 for tensor in _own_tensors(layer))


def _kind(module: fx.GraphModule, node: fx.Node) -> tuple[type[nn.Module], str] | None:
    """The type of a layer and its settings: calls of a function with one weight may have strides of their own."""
    layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    return None if layer is None else (type(layer), layer.extra_repr())


def _tensors(module: fx.GraphModule, node: fx.Node) -> Iterator[Tensor]:
    """The tensors that a node uses itself."""
    if node.op == "call_module":
        yield from _own_tensors(module.get_submodule(str(node.target)))
    else:
        owner, _, name = str(node.target).rpartition(".")
        yield getattr(module.get_submodule(owner), name)


def _own_tensors(layer: nn.Module) -> Iterator[Tensor]:
    """The tensors of a layer, without those that happen to lie under its path, but with what parametrised ones come from.

    A linear layer or convolution that stands for a call in a module of the user's shares its path with the module's other tensors. Counters
    are left out, of which every call may have its own.
    """
    multiplies = type(layer) in (*LINEARS, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
    buffers = ((name, buffer) for name, buffer in layer.named_buffers(recurse=False) if buffer.ndim)
    named = (*layer.named_parameters(recurse=False), *buffers)
    yield from (tensor for name, tensor in named if not multiplies or name in ("weight", "bias"))
    for name, child in layer.named_children():
        if name == "parametrizations":
            yield from child.parameters()
