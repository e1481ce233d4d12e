"""Exported programs in which tensors are not changed in place and no other program is called."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

_ARITHMETIC_WITH_SIZES = frozenset({"_operator", "builtins", "math", "torch"})
"""Where functions of numbers come from; tensors go through operators of ATen."""


def opaque_operator(name: str, number: str) -> Callable[..., Tensor]:
    """A function that exporters do not look into: it gives back a tensor, and remembers a number.

    Args:
        name: of the operator, in ``torch.ops.bayesprune``.
        number: type and name of the number, as in a schema.
    """
    schema = f"(Tensor x, {number}) -> Tensor"
    operator = torch.library.custom_op(f"bayesprune::{name}", lambda x, _: x.clone(), mutates_args=(), schema=schema)
    operator.register_fake(lambda x, _: torch.empty_like(x))
    return operator


opaque_operator("dropout", "float p")  # Which is nothing in evaluation mode, and would be left out.


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program in operators that only compute: assignments become values, and programs inside it become part of it.

    Such are in the code of a model under ``no_grad`` or ``autocast``, or vectorised by ``vmap``.
    """
    if all(_only_computes(node) for node in program.graph.nodes):
        return program
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _replace(module.graph, torch.ops.aten.dropout.default, torch.ops.bayesprune.dropout.default)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Torch uses what it is about to give up.
        return program.run_decompositions({})  # type: ignore[no-any-return]


def restore_dropouts(graph: fx.Graph) -> None:
    """Let the dropouts of a functional program be dropouts again."""
    _replace(graph, torch.ops.bayesprune.dropout.default, torch.ops.aten.dropout.default, False)


def _replace(graph: fx.Graph, before: OpOverload[Any, Any], after: OpOverload[Any, Any], *further: Any) -> None:
    for node in graph.find_nodes(op="call_function", target=before):
        node.target, node.args = after, (*node.args[:2], *further)


def _only_computes(node: fx.Node) -> bool:
    if node.op != "call_function":
        return True
    if isinstance(node.target, OpOverload):
        return not node.target._schema.is_mutable
    return getattr(node.target, "__module__", "") in _ARITHMETIC_WITH_SIZES
