"""Calls that say in one word what the vocabulary says in several, such as sums over letters and gated linear units."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import fx

from bayesprune.graph.vocabulary import FUNCTIONS, Function

Say: TypeAlias = Callable[[Function, dict[str, Any]], fx.Node]
"""Writes a call of a word with these arguments."""


@dataclass(frozen=True)
class Product:
    """An ``einsum`` of two tensors as a product of matrices: the order of each tensor's dimensions before it, and of the result's after."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]


def as_product(equation: str, ranks: Sequence[int]) -> Product | None:
    """The product of matrices that an equation for tensors of these ranks stands for; None where it is something else."""
    operands, _, result = equation.replace(" ", "").partition("->")
    left, _, right = operands.partition(",")
    hidden = {rank - len(word.replace("...", "")) for word, rank in zip((left, right), ranks, strict=True) if "..." in word}
    if len(hidden) == 1:
        left, right, result = (word.replace("...", "0123456789"[: max(hidden)]) for word in (left, right, result))
    if not result or "." in result or "," in right or any(len(set(word)) < len(word) for word in (left, right, result)):
        return None
    shared = [letter for letter in result if letter in left and letter in right]
    summed = [letter for letter in left if letter in right and letter not in result]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    if not (len(summed) == len(rows) == len(columns) == 1 and {*rows, *columns} <= set(result)):
        return None
    orders = (
        [left.index(letter) for letter in (*shared, *rows, *summed)],
        [right.index(letter) for letter in (*shared, *summed, *columns)],
        [[*shared, *rows, *columns].index(letter) for letter in result],
    )
    return Product(*(tuple(order) for order in orders))


def write_einsum(say: Say, equation: Any, operands: Sequence[Any], ranks: Sequence[int]) -> fx.Node | None:
    """A sum over products of two tensors; None where it is no product of matrices."""
    product = as_product(equation, ranks) if isinstance(equation, str) and len(operands) == 2 else None
    if product is None:
        return None

    def ordered(tensor: Any, dims: tuple[int, ...]) -> Any:
        return tensor if dims == tuple(range(len(dims))) else say(FUNCTIONS["permute"], {"input": tensor, "dims": dims})

    left, right = ordered(operands[0], product.left), ordered(operands[1], product.right)
    result: fx.Node = ordered(say(FUNCTIONS["matmul"], {"input": left, "other": right}), product.result)
    return result


def write_glu(say: Say, graph: fx.Graph, tensor: fx.Node, dim: int) -> fx.Node:
    """The first half times the sigmoid of the second."""
    halves = say(FUNCTIONS["chunk"], {"input": tensor, "chunks": 2, "dim": dim})
    value, gate = (graph.call_function(operator.getitem, (halves, index)) for index in (0, 1))
    return say(FUNCTIONS["mul"], {"input": value, "other": say(FUNCTIONS["sigmoid"], {"input": gate})})


def write_extreme(say: Say, name: str, tensor: fx.Node, dim: int, keepdim: bool) -> tuple[fx.Node, fx.Node]:
    """``max`` or ``min`` along a dimension: the elements and their places."""
    bound = {"input": tensor, "dim": dim, "keepdim": keepdim}
    return say(FUNCTIONS[f"a{name}"], bound), say(FUNCTIONS[f"arg{name}"], bound)
