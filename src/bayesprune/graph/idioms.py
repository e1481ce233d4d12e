"""Calls that say in one word what the vocabulary says in several, such as sums over letters and gated linear units."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from bayesprune.graph.binding import bind
from bayesprune.graph.vocabulary import FUNCTIONS, Function


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


class Idioms:
    """Writes such calls into a graph.

    Args:
        graph: where they go.
        say: writes a call of one word of the vocabulary with these arguments.
    """

    def __init__(self, graph: fx.Graph, say: Callable[[Function, dict[str, Any]], fx.Node]) -> None:
        self.graph, self.say = graph, say

    def write(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], value: Any) -> Any:
        """What stands for a call of this name that computed this value; None if it is no idiom, or not in this form."""
        arguments = [*args, *kwargs.values()]
        if name == "einsum":
            return self.einsum(arguments[0], arguments[1] if isinstance(arguments[1], (tuple, list)) else arguments[1:])
        if name == "glu" and set(kwargs) <= {"dim"}:
            return self.glu(arguments[0], arguments[1] if len(arguments) > 1 else -1)
        if name in ("max", "min") and isinstance(value, tuple):
            bound = bind(FUNCTIONS[f"a{name}"], None, tuple(args), kwargs)
            if bound is not None:
                return self.extreme(name, bound)
        if name == "stack" and isinstance(arguments[0], (tuple, list)) and isinstance(value, Tensor) and "out" not in kwargs:
            return self.stack(arguments[0], (arguments[1] if len(arguments) > 1 else 0) % value.ndim)
        if name in ("t", "numpy_T", "mT") and isinstance(value, Tensor) and value.ndim <= 2:
            return self.say(FUNCTIONS["transpose"], {"input": arguments[0], "dim0": 0, "dim1": 1}) if value.ndim == 2 else arguments[0]
        if name in ("addmm", "baddbmm"):
            return self.product_and_sum(args, kwargs)
        if name in ("clamp_min", "clamp_max"):
            return self.say(FUNCTIONS["clamp"], {"input": arguments[0], name.removeprefix("clamp_"): arguments[1]})
        if name in ("fill", "scalar_tensor"):
            return self.filled(name, arguments, value)
        if name == "copy":
            return self.copy(arguments[0], arguments[1], value)
        if name == "_weight_norm":
            return self.weight_norm(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else 0, value.ndim)
        return None

    def einsum(self, equation: Any, operands: Sequence[Any]) -> fx.Node | None:
        """A sum over products of two tensors; None where it is no product of matrices."""
        ranks = [len(each.meta["shape"]) for each in operands]
        product = as_product(equation, ranks) if isinstance(equation, str) and len(operands) == 2 else None
        if product is None:
            return None
        left, right = self._ordered(operands[0], product.left), self._ordered(operands[1], product.right)
        return self._ordered(self.say(FUNCTIONS["matmul"], {"input": left, "other": right}), product.result)

    def product_and_sum(self, args: Sequence[Any], kwargs: dict[str, Any]) -> fx.Node | None:
        """A product of matrices with something added to it; None where that is ignored, which a sum does not do."""
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        tensor, left, right = (*args, *(kwargs[name] for name in ("input", "mat1", "batch1", "mat2", "batch2") if name in kwargs))
        if beta == 0:
            return None
        product = self.say(FUNCTIONS["matmul"], {"input": left, "other": right})
        scaled = product if alpha == 1 else self.say(FUNCTIONS["mul"], {"input": product, "other": alpha})
        return self.say(FUNCTIONS["add"], {"input": scaled, "other": tensor, "alpha": beta})

    def _ordered(self, tensor: fx.Node, dims: tuple[int, ...]) -> fx.Node:
        return tensor if dims == tuple(range(len(dims))) else self.say(FUNCTIONS["permute"], {"input": tensor, "dims": dims})

    def glu(self, tensor: fx.Node, dim: int) -> fx.Node:
        """The first half times the sigmoid of the second."""
        halves = self.say(FUNCTIONS["chunk"], {"input": tensor, "chunks": 2, "dim": dim})
        value, gate = (self.graph.call_function(operator.getitem, (halves, index)) for index in (0, 1))
        return self.say(FUNCTIONS["mul"], {"input": value, "other": self.say(FUNCTIONS["sigmoid"], {"input": gate})})

    def extreme(self, name: str, bound: dict[str, Any]) -> tuple[fx.Node, fx.Node]:
        """``max`` or ``min`` along a dimension: the elements and their places."""
        return self.say(FUNCTIONS[f"a{name}"], bound), self.say(FUNCTIONS[f"arg{name}"], bound)

    def stack(self, tensors: Sequence[fx.Node], dim: int) -> fx.Node:
        """Tensors put behind each other along a dimension that each gets for it."""
        parts = tuple(self.say(FUNCTIONS["unsqueeze"], {"input": each, "dim": dim}) for each in tensors)
        return self.say(FUNCTIONS["cat"], {"tensors": parts, "dim": dim})

    def filled(self, name: str, arguments: Sequence[Any], value: Tensor) -> fx.Node:
        """One number everywhere: in the shape of a tensor, or by itself."""
        if name == "fill":
            return self.say(FUNCTIONS["full_like"], {"input": arguments[0], "fill_value": arguments[1]})
        return self.say(FUNCTIONS["full"], {"shape": (), "fill_value": arguments[0], "dtype": value.dtype})

    def copy(self, over: fx.Node, tensor: fx.Node, value: Tensor) -> fx.Node:
        """A tensor in the shape and of the type of the one that it was assigned to."""
        shape = tuple(self.say(FUNCTIONS["size"], {"input": over, "dim": dim}) for dim in range(value.ndim))
        converted = self.say(FUNCTIONS["to"], {"input": tensor, "dtype": value.dtype})
        return self.say(FUNCTIONS["expand"], {"input": converted, "shape": shape})

    def weight_norm(self, direction: fx.Node, length: fx.Node, dim: int, rank: int) -> fx.Node:
        """A weight of which every part along a dimension has its own length."""
        others = [other for other in range(rank) if other != dim % rank]
        norm = self.say(FUNCTIONS["vector_norm"], {"input": direction, "dim": others, "keepdim": True})
        return self.say(FUNCTIONS["mul"], {"input": direction, "other": self.say(FUNCTIONS["div"], {"input": length, "other": norm})})
