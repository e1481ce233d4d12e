"""A convolution of images, behind an input-dependent gate or not, with what stands around it, as one call of native code."""

import itertools
from collections.abc import Sequence
from ctypes import Array, addressof, c_double, c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesprune.adaptive.native.compiling import Kernel, compiled
from bayesprune.adaptive.native.gated_linear import mask_in_torch

_NAME = "gated_convolution"
_ARGUMENTS = [c_void_p, c_ssize_t, c_void_p, c_void_p, c_double, *[c_void_p] * 3, *[c_ssize_t] * 2, *[c_void_p] * 3]
_TOLERANCE = 1e-4
_PRODUCTS = 2e6
"""For which it is worth to wake up a further thread, for a part of a batch; gated_convolution.c has the same for parts of an image."""
_BLOCK_BYTES = 64
"""Of the weights that lie together, for neighbouring outputs."""
Numbers: TypeAlias = "Array[c_ssize_t]"


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


@dataclass(frozen=True, eq=False)
class Geometry:
    """Sizes as native code takes them.

    Attributes:
        numbers: of the images, steps and results.
        taps_at: where the elements lie that a place of the result reads, counted from its first.
        size: of a channel with its border.
        result: height and width of the result.
        products: that an image takes, if all units are needed.
    """

    numbers: Numbers
    taps_at: Numbers
    size: int
    result: tuple[int, int]
    products: int


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the order in which native code reads them.

    Attributes:
        weights: of shape (blocks, units, taps, outputs of a block).
        ends: what each output's sum begins with, and scale and shift of its result, of shape (3, blocks, outputs of a block).
        outputs: how many there are.
    """

    weights: Tensor
    ends: Tensor
    outputs: int


@torch.no_grad()
def packed(weights: Tensor, bias: Tensor | None, norm: tuple[Tensor, Tensor] | None = None) -> Packed:
    """The weights of a convolution for native code.

    Args:
        weights: of shape (units, ..., kernel height, kernel width, outputs).
        bias: of shape (outputs,), if there is one.
        norm: scale and shift of a normalisation of the result, of shape (outputs,) each, if there is one.
    """
    units, outputs = weights.shape[0], weights.shape[-1]
    block = _BLOCK_BYTES // weights.element_size()
    missing = -outputs % block
    padded = F.pad(weights.reshape(units, -1, outputs), (0, missing))
    blocks = padded.reshape(units, padded.shape[1], -1, block).permute(2, 0, 1, 3).contiguous()
    start = weights.new_zeros(outputs) if bias is None else bias
    scale, shift = (weights.new_ones(outputs), weights.new_zeros(outputs)) if norm is None else norm
    return Packed(blocks, F.pad(torch.stack([start, scale, shift]), (0, missing)).contiguous(), outputs)


@cache
def kernel(dtype: torch.dtype) -> Kernel | None:
    """The native code for numbers of a type; None where there is no compiler for it, or what it makes computes something else."""
    function = compiled(_NAME, dtype, _ARGUMENTS, threaded=True)
    return function if function is not None and _is_right(function, dtype) else None


def gated_convolution(function: Kernel, x: Tensor, rule: Tensor | None, threshold: float, geometry: Geometry, own: Packed) -> Tensor:
    """What gate, steps, convolution and normalisation give, by native code.

    Args:
        function: what ``kernel`` gave.
        x: of shape (batch, units, height, width); all tensors are of one type, and lie on the processor without gaps.
        rule: scale, shift and greatest value of the masks, of shape (3, units); None where there are no masks.
        threshold: masks that do not exceed it are zero.
        geometry: what ``geometry_of`` gave for images of this size.
        own: what ``packed`` gave.
    """
    (batch, units), threads = x.shape[:2], torch.get_num_threads()
    parts = threads if batch >= 2 * threads and batch * geometry.products > _PRODUCTS * threads else 1
    numbers = torch.empty(parts * units, dtype=torch.int64, device=x.device)  # Whatever torch's default device is.
    work = x.new_empty(parts * units * geometry.size)
    result = x.new_empty((batch, own.outputs, *geometry.result))
    function(
        x.data_ptr(),
        batch,
        addressof(geometry.numbers),
        None if rule is None else rule.data_ptr(),
        threshold,
        own.weights.data_ptr(),
        own.ends.data_ptr(),
        addressof(geometry.taps_at),
        threads,
        parts,
        numbers.data_ptr(),
        work.data_ptr(),
        result.data_ptr(),
    )
    return result


@lru_cache(maxsize=1024)
def geometry_of(steps: Steps, units: int, height: int, width: int, outputs: int) -> Geometry | None:
    """The sizes for images of a size; None where the result would be empty."""
    result = steps.result_size(height, width)
    if min(height, width) < steps.pool or min(result) < 1:
        return None
    across = width // steps.pool + 2 * steps.padding[1]
    size = (height // steps.pool + 2 * steps.padding[0]) * across
    taps = itertools.product(range(steps.kernel_size[0]), range(steps.kernel_size[1]))
    taps_at = [y * steps.dilation[0] * across + x * steps.dilation[1] for y, x in taps]
    windows = (steps.rectified, steps.rectify, steps.pool, *steps.padding)
    places = (result[0] * result[1], result[1], steps.stride[1], steps.stride[0] * across)
    numbers = (units, height, width, *windows, size, outputs, len(taps_at), *places)
    return Geometry(_numbers(numbers), _numbers(taps_at), size, result, units * len(taps_at) * places[0] * outputs)


def _numbers(values: Sequence[int]) -> Numbers:
    return (c_ssize_t * len(values))(*values)


def _is_right(function: Kernel, dtype: torch.dtype) -> bool:
    """Whether native code gives what torch does, on a layer with odd sizes."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 11, 9), (3, 5), (5, 3, 2, 39), (39,), (39,))
    x, rule, weights, bias, scale = (torch.randn(shape, generator=generator, dtype=dtype, device="cpu") for shape in shapes)
    own = packed(weights, bias, (scale, bias))
    for steps in (Steps(False, True, 2, (3, 2), (1, 2), (1, 0), (1, 2)), Steps(True, False, 1, (3, 2), (2, 1), (0, 1), (2, 1))):
        read = x.clamp(min=0.0) if steps.rectified else x
        for masks in (None, mask_in_torch(read.mean(dim=(2, 3)), rule, 0.1)):
            y = read if masks is None else read * masks[:, :, None, None]
            y = F.max_pool2d(y.clamp(min=0.0) if steps.rectify else y, steps.pool)
            expected = F.conv2d(y, weights.movedim(-1, 0), bias, steps.stride, steps.padding, steps.dilation)
            expected = expected * scale[:, None, None] + bias[:, None, None]
            geometry = geometry_of(steps, *x.shape[1:], own.outputs)
            assert geometry is not None
            found = gated_convolution(function, x, None if masks is None else rule, 0.1, geometry, own)
            if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
                return False
    return True
