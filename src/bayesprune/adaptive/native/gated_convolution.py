"""A convolution of images behind an input-dependent gate, with what stands between them, as one call of native code."""

from collections.abc import Sequence
from ctypes import Array, addressof, c_double, c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesprune.adaptive.native.compiling import Kernel, compiled
from bayesprune.adaptive.native.gated_linear import mask_in_torch

_NAME = "gated_convolution"
_ARGUMENTS = [c_void_p, c_ssize_t, c_void_p, c_void_p, c_double, *[c_void_p] * 6]
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Steps:
    """What is done with images, but for their sizes.

    Attributes:
        rectified: whether it is the positive part of them that is masked.
        rectify: whether the positive part of what is masked is taken.
        pool: side and stride of the windows of which the greatest elements are taken then; 1 for none.
        kernel_size: of the convolution.
        stride: of it.
        padding: of it.
        dilation: of it.
    """

    rectified: bool
    rectify: bool
    pool: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def result_size(self, height: int, width: int) -> tuple[int, int]:
        """Of the convolution's result, for images of a size."""
        pooled = (height // self.pool, width // self.pool)
        high, wide = convolved_size(pooled, self.kernel_size, self.stride, self.padding, self.dilation)
        return high, wide


def convolved_size(
    size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Of a convolution's result, dimension by dimension."""
    about = zip(size, kernel_size, stride, padding, dilation, strict=True)
    return [(length + 2 * pad - gap * (side - 1) - 1) // step + 1 for length, side, step, pad, gap in about]


@cache
def kernel(dtype: torch.dtype) -> Kernel | None:
    """The native code for numbers of a type; None where there is no compiler for it, or what it makes computes something else."""
    function = compiled(_NAME, dtype, _ARGUMENTS)
    return function if function is not None and _is_right(function, dtype) else None


def gated_convolution(
    function: Kernel, x: Tensor, rule: Tensor, threshold: float, steps: Steps, weights: Tensor, bias: Tensor | None
) -> Tensor:
    """What gate, steps and convolution give, by native code.

    Args:
        function: what ``kernel`` gave.
        x: of shape (batch, units, height, width); all tensors are of one type, and lie on the processor without gaps.
        rule: scale, shift and greatest value of the masks, of shape (3, units).
        threshold: masks that do not exceed it are zero.
        steps: what is done with ``x``; their result must not be empty.
        weights: of shape (units, ..., kernel height, kernel width, outputs).
        bias: of shape (outputs,), if there is one.
    """
    batch, units, height, width = x.shape
    outputs = weights.shape[-1]
    geometry, room = _geometry(steps, units, height, width, outputs)
    numbers = torch.empty(units, dtype=torch.int64, device=x.device)  # Whatever torch's default device is.
    work = x.new_empty(room + outputs)
    result = x.new_empty((batch, outputs, *steps.result_size(height, width)))
    pointer = None if bias is None else bias.data_ptr()
    padded = work.data_ptr()
    places = (numbers.data_ptr(), padded, padded + room * work.element_size(), result.data_ptr())
    function(x.data_ptr(), batch, addressof(geometry), rule.data_ptr(), threshold, weights.data_ptr(), pointer, *places)
    return result


@lru_cache(maxsize=1024)
def _geometry(steps: Steps, units: int, height: int, width: int, outputs: int) -> "tuple[Array[c_ssize_t], int]":
    """The sizes as native code takes them, and how many numbers it needs room for."""
    windows = (steps.rectified, steps.rectify, steps.pool)
    sizes = (*steps.kernel_size, *steps.stride, *steps.padding, *steps.dilation, *steps.result_size(height, width))
    numbers = (units, height, width, *windows, outputs, *sizes)
    room = units * (height // steps.pool + 2 * steps.padding[0]) * (width // steps.pool + 2 * steps.padding[1])
    return (c_ssize_t * len(numbers))(*numbers), room


def _is_right(function: Kernel, dtype: torch.dtype) -> bool:
    """Whether native code gives what torch does, on a layer with odd sizes."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 11, 9), (3, 5), (5, 3, 2, 7), (7,))
    x, rule, weights, bias = (torch.randn(shape, generator=generator, dtype=dtype, device="cpu") for shape in shapes)
    for steps in (Steps(False, True, 2, (3, 2), (1, 2), (1, 0), (1, 2)), Steps(True, False, 1, (3, 2), (2, 1), (0, 1), (2, 1))):
        read = x.clamp(min=0.0) if steps.rectified else x
        y = read * mask_in_torch(read.mean(dim=(2, 3)), rule, 0.1)[:, :, None, None]
        y = F.max_pool2d(y.clamp(min=0.0) if steps.rectify else y, steps.pool)
        expected = F.conv2d(y, weights.movedim(-1, 0), bias, steps.stride, steps.padding, steps.dilation)
        found = gated_convolution(function, x, rule, 0.1, steps, weights, bias)
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            return False
    return True
