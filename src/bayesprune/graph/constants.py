"""Constants without dimensions: which of them may stand as numbers in the internal graph."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from bayesprune.graph.binding import spelled

SAME_TENSOR = frozenset({"contiguous", "clone", "alias", "lift_fresh_copy", "requires_grad_"})
"""Functions that give back what they are given."""
_TAKE_NUMBERS = frozenset(
    {f"{before}{name}" for name in ("add", "sub", "mul", "truediv", "div") for before in ("", "i", "r")}
    | {"pow", "floordiv", "mod", "remainder", "floor_divide", "fmod", "multiply", "divide", "subtract"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "masked_fill", "fill", "full_like", "maximum", "minimum", "max", "min"}
)
"""Functions of a tensor with a number."""


def stands_as_number(constant: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """Whether all that read a constant take a number in its place and give the same, in the same type.

    Args:
        constant: a tensor without dimensions.
        values: what the nodes computed for the example.
    """
    return all(_takes_number(user, read, values) for user, read in _readers(constant))


def _readers(constant: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Who reads a constant, and as which node: it may be passed on."""
    for user in constant.users:
        if _name(user) in SAME_TENSOR:
            yield from _readers(user)
        else:
            yield user, constant


def _takes_number(user: fx.Node, constant: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    value, others = values[constant], [values[each] for each in user.all_input_nodes if each is not constant]
    if _name(user).strip("_") not in _TAKE_NUMBERS or not others or not all(isinstance(other, Tensor) and other.ndim for other in others):
        return False
    return all(torch.result_type(other, value.item()) == torch.result_type(other, value) for other in others)


def _name(node: fx.Node) -> str:
    return spelled(node.target).split(".")[0] if node.op in ("call_function", "call_method") else ""
