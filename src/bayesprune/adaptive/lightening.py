"""A compacted network without what a call need not do again: a small network spends much of its time on small operations."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.graph.layer_types import DROPOUTS

_FOLDED = ("call_function", "call_method")


def lightened(network: fx.GraphModule, shapes: dict[fx.Node, torch.Size]) -> fx.GraphModule:
    """The same network, which shares its layers: constants computed once, normalisations of vectors as one operation, without dropouts.

    Args:
        network: what ``compact`` gave, in evaluation mode.
        shapes: of the result of each node on an example.
    """
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(network.graph, new))
    old = {copy: node for node, copy in new.items()}
    attributes: dict[str, Any] = {}
    constants: dict[fx.Node, Tensor] = {}
    paths = free_paths(network, "folded")
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = attribute_of(network, str(node.target))
            if isinstance(value, Tensor):
                constants[node] = value
        elif node.op in _FOLDED and node.all_input_nodes and all(each in constants for each in node.all_input_nodes):
            known = _computed(node, constants)
            if isinstance(known, Tensor):
                constants[node] = known.contiguous()
                _replace(graph, node, next(paths), attributes, constants)
        elif node.op == "call_module" and isinstance(network.get_submodule(str(node.target)), (*DROPOUTS, nn.Identity)):
            node.replace_all_uses_with(node.all_input_nodes[0])
        elif node.op == "call_module" and _is_vector_norm(network.get_submodule(str(node.target)), shapes.get(old[node])):
            _as_product(graph, node, network.get_submodule(str(node.target)), paths, attributes)
    return assembled(graph, network, attributes)


def assembled(graph: fx.Graph, network: fx.GraphModule, more: dict[str, Any]) -> fx.GraphModule:
    """A network of a graph, with the layers and tensors of another and some more."""
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    paths = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    found = {path: more[path] if path in more else attribute_of(network, path) for path in paths}
    module = fx.GraphModule(found, graph, "AdaptiveNetwork")
    module.graph.lint()
    return module.eval()


def free_paths(network: nn.Module, word: str) -> Iterator[str]:
    """Names with a number that no layer or tensor of a network has."""
    return (path for path in (f"{word}_{number}" for number in itertools.count()) if not hasattr(network, path))


def attribute_of(network: fx.GraphModule, path: str) -> Any:
    """A layer or tensor of a network by its path."""
    owner, _, name = path.rpartition(".")
    return getattr(network.get_submodule(owner), name)


@torch.no_grad()
def _computed(node: fx.Node, constants: dict[fx.Node, Tensor]) -> Any:
    args: Any = fx.map_arg(node.args, lambda each: constants[each])
    kwargs: Any = fx.map_arg(node.kwargs, lambda each: constants[each])
    function: Any = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
    return function(*(args[1:] if isinstance(node.target, str) else args), **kwargs)


def _replace(graph: fx.Graph, node: fx.Node, path: str, attributes: dict[str, Any], constants: dict[fx.Node, Tensor]) -> None:
    attributes[path] = nn.Buffer(constants[node], persistent=False)
    with graph.inserting_before(node):
        known = graph.get_attr(path)
    constants[known] = constants[node]
    node.replace_all_uses_with(known)


def _is_vector_norm(layer: nn.Module, shape: torch.Size | None) -> bool:
    return type(layer) is nn.BatchNorm1d and shape is not None and len(shape) == 2 and layer.running_mean is not None


@torch.no_grad()
def scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """Of a normalisation with fixed statistics. In double precision, so that masks at their threshold come out as they did."""
    weight = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
    bias = torch.zeros_like(norm.running_mean) if norm.bias is None else norm.bias
    scale = weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    shift = bias.double() - norm.running_mean.double() * scale
    return scale.to(norm.running_mean.dtype), shift.to(norm.running_mean.dtype)


def _as_product(graph: fx.Graph, node: fx.Node, norm: Any, free: Iterator[str], attributes: dict[str, Any]) -> None:
    """scale * x + shift."""
    paths = [next(free), next(free)]
    attributes |= {path: nn.Buffer(value, persistent=False) for path, value in zip(paths, scale_and_shift(norm), strict=True)}
    with graph.inserting_before(node):
        factors, start = (graph.get_attr(path) for path in paths)
        result = graph.call_function(torch.addcmul, (start, node.args[0], factors))
    node.replace_all_uses_with(result)
