"""Statements about the elements of an activation, kept small.

A status has the rank of the activation it speaks of; along a dimension in which it says the same everywhere it has size one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Known:
    """Which elements of an activation have the same value for every input, and that value. Both are statuses of one shape."""

    mask: Tensor
    value: Tensor

    @property
    def zero(self) -> Tensor:
        """Which elements are known to be zero."""
        return self.mask & (self.value == 0)

    def wherever(self, dims: Iterable[int]) -> "Known | None":
        """What is known of all indices of these dimensions alike: their number changes from input to input."""
        mask, value = self.mask, self.value
        for dim in dims:
            if mask.shape[dim] > 1:
                first = value.narrow(dim, 0, 1)
                mask, value = mask.all(dim=dim, keepdim=True) & (value == first).all(dim=dim, keepdim=True), first
        return self if mask is self.mask else known(mask, value)


def known(mask: Tensor, value: Tensor) -> Known | None:
    """What is known, in its smallest form; None if it is nothing."""
    if not bool(mask.any()):
        return None
    mask, value = mask | torch.zeros_like(value, dtype=torch.bool), value + torch.zeros_like(mask, dtype=value.dtype)
    value = torch.where(mask, value, 0.0)
    for dim in range(mask.ndim):
        if mask.shape[dim] > 1 and _is_uniform(mask, dim) and _is_uniform(value, dim):
            mask, value = mask.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    return Known(mask.clone(), value.clone())


def compressed(status: Tensor) -> Tensor:
    """The status with size one along the dimensions in which it does not change."""
    for dim in range(status.ndim):
        if status.shape[dim] > 1 and _is_uniform(status, dim):
            status = status.narrow(dim, 0, 1)
    return status


def anywhere(status: Tensor, dims: Iterable[int]) -> Tensor:
    """Where it holds for some index of these dimensions, for all of them."""
    spread = [dim for dim in dims if status.ndim > dim and status.shape[dim] > 1]
    return status.any(dim=spread, keepdim=True) if spread else status


def along(status: Tensor, dim: int, size: int) -> Tensor:
    """Where it holds anywhere, for each index along one dimension: a vector."""
    others = [other for other in range(status.ndim) if other != dim % status.ndim]
    vector = status.any(dim=others) if others else status
    return vector.expand(size) if vector.shape[0] != size else vector


def on_dimension(vector: Tensor, dim: int, rank: int) -> Tensor:
    """A vector as a status that changes along one dimension only."""
    shape = [1] * rank
    shape[dim] = len(vector)
    return vector.reshape(shape)


def is_along_only(status: Tensor, dim: int) -> bool:
    """Whether the status changes along this dimension only."""
    return all(size == 1 for other, size in enumerate(status.shape) if other != dim % status.ndim)


def reduced_to(status: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A status of a result seen from an operand that was broadcast to it: where it holds for any of the elements an element went to."""
    extra = status.ndim - len(shape)
    if extra > 0:
        status = status.any(dim=tuple(range(extra)))
    spread = [dim for dim, size in enumerate(shape) if size == 1 and status.shape[dim] > 1]
    return status.any(dim=spread, keepdim=True) if spread else status


def aligned(status: Tensor, rank: int) -> Tensor:
    """A status of an operand with leading dimensions of size one, as broadcasting sees it."""
    return status.reshape([1] * (rank - status.ndim) + list(status.shape))


def _is_uniform(status: Tensor, dim: int) -> bool:
    return bool((status == status.narrow(dim, 0, 1)).all())
