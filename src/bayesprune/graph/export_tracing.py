"""A model's graph from ``torch.export``: slower, but it follows the Python code that ``torch.fx`` cannot."""

import inspect
import itertools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from bayesprune.example_inputs import tensors_in
from bayesprune.gates import gates
from bayesprune.gates.hooks import acting_as
from bayesprune.graph.functional_programs import functional, opaque_operator, restore_dropouts
from bayesprune.graph.transformers import attention_written_out

_opaque_gate = opaque_operator("gate", "int index")
"""Stands for the gate with this index while a model is exported."""


@contextmanager
def _gates_as_leaves(model: nn.Module) -> Iterator[list[str]]:
    """Let every gate show in an exported graph as one call."""
    found = gates(model)
    with acting_as({gate: partial(_opaque_gate, index=index) for index, gate in enumerate(found.values())}):
        yield list(found)


def export_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], any_size: bool = False
) -> tuple[fx.Graph, dict[str, nn.Module | Tensor]]:
    """The graph of the model, and every module and tensor that it refers to by path.

    Args:
        model: what to follow.
        args: positional arguments of the example.
        kwargs: its keyword arguments.
        any_size: whether the graph should be one for inputs of other sizes too, rather than for another batch size only.
    """
    with _gates_as_leaves(model) as gate_names, attention_written_out(), torch.no_grad():
        program = functional(_export(model, args, kwargs, any_size))
    return _unlifted(program, model, gate_names, [*inspect.signature(model.forward).bind(*args, **kwargs).arguments][: len(args)])


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], any_size: bool) -> ExportedProgram:
    tensors = [tensor for tensor in tensors_in((args, kwargs)) if tensor.ndim]
    batch = tensors[0].shape[0] if tensors else None

    def dynamic(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {dim: Dim.AUTO for dim, size in enumerate(leaf.shape) if any_size or (dim == 0 and size == batch)} or None

    try:
        # By the names of the signature: a loaded network takes ``*args``.
        shapes = pytree.tree_map(dynamic, dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments))
        return export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception:  # A model with a fixed batch size: export it as it is.
        if any_size:
            raise
        return export(model, args, kwargs, strict=False)


def _unlifted(
    program: ExportedProgram, model: nn.Module, gate_names: list[str], argument_names: list[str]
) -> tuple[fx.Graph, dict[str, nn.Module | Tensor]]:
    """The program's graph with parameters and buffers as attributes again, gates as modules, inputs and outputs in their containers."""
    graph = fx.Graph()
    moved: dict[fx.Node, Any] = _inputs(graph, program, argument_names)
    referred: dict[str, nn.Module | Tensor] = {}
    lifted = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.kind is not InputKind.USER_INPUT}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in lifted:
            if not node.users:  # A program has all tensors of the model, those of gates among them, which are shared and keep their own.
                continue
            path = str(lifted[node.name].target)
            referred[path] = _tensor_at(program, path)
            moved[node] = graph.get_attr(path)
        elif node.op == "call_function" and node.target is torch.ops.bayesprune.gate.default:
            path = gate_names[node.args[1]]
            referred[path] = model.get_submodule(path)
            moved[node] = graph.call_module(path, (moved[node.args[0]],))
        elif node.op == "output":
            kinds = [spec.kind for spec in program.graph_signature.output_specs]
            # What a program writes into the model's buffers comes before its results; a graph computes and remembers nothing.
            results = [leaf for leaf, kind in zip(node.args[0], kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
            leaves = [moved[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in results]
            assert program.call_spec.out_spec is not None
            graph.output(pytree.tree_unflatten(leaves, program.call_spec.out_spec))
        elif node.op != "placeholder":
            moved[node] = graph.node_copy(node, lambda each: moved[each])
    restore_dropouts(graph)
    return graph, referred


def _inputs(graph: fx.Graph, program: ExportedProgram, argument_names: list[str]) -> dict[fx.Node, Any]:
    """What stands for the inputs of a program, which takes tensors one by one: the model's arguments, or what is inside them."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    given = [nodes[spec.arg.name] for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    args, kwargs = pytree.tree_unflatten(given, program.call_spec.in_spec)
    moved: dict[fx.Node, Any] = {}
    inside: list[tuple[fx.Node, fx.Node, list[Any]]] = []
    for name, argument in (*itertools.zip_longest(argument_names, args), *kwargs.items()):
        leaves = pytree.tree_leaves_with_path(argument)
        if not any(leaf.users or isinstance(leaf.meta.get("val"), Tensor) for _, leaf in leaves):
            continue
        if isinstance(argument, fx.Node):
            moved[argument] = graph.node_copy(argument)
        else:
            container = graph.placeholder(name or leaves[0][1].name)
            inside += [(leaf, container, _keys(argument, path)) for path, leaf in leaves if leaf.users]
    for leaf, part, keys in inside:
        moved[leaf] = part
        for key in keys:
            moved[leaf] = graph.call_function(operator.getitem, (moved[leaf], key))
    return moved


def _keys(container: Any, path: pytree.KeyPath) -> list[Any]:
    """By which keys and numbers a part of a container is reached; parts of a named tuple have numbers too."""
    keys: list[Any] = []
    for key in path:
        if isinstance(key, pytree.GetAttrKey):
            keys.append(type(container)._fields.index(key.name))
        else:
            keys.append(key.key if isinstance(key, pytree.MappingKey) else key.idx)  # type: ignore[attr-defined]
        container = container[keys[-1]]
    return keys


def _tensor_at(program: ExportedProgram, path: str) -> Tensor:
    if path in program.state_dict:
        return program.state_dict[path]  # type: ignore[no-any-return]
    return program.constants[path]  # type: ignore[no-any-return]
