"""A linear layer behind an input-dependent gate, for vectors, as one call of native code."""

from ctypes import c_double, c_int, c_ssize_t, c_void_p
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesprune.adaptive.native.compiling import Kernel, compiled

_NAME = "gated_linear"
_ARGUMENTS = [c_void_p, c_ssize_t, c_ssize_t, c_ssize_t, c_int, c_void_p, c_double, c_void_p, c_void_p, c_void_p]
_TOLERANCE = 1e-4


@cache
def kernel(dtype: torch.dtype) -> Kernel | None:
    """The native code for numbers of a type; None where there is no compiler for it, or what it makes computes something else."""
    function = compiled(_NAME, dtype, _ARGUMENTS)
    return function if function is not None and _is_right(function, dtype) else None


def gated_linear(
    function: Kernel, x: Tensor, rule: Tensor, threshold: float, rectified: bool, weights: Tensor, bias: Tensor | None
) -> Tensor:
    """What gate and linear layer give, by native code.

    Args:
        function: what ``kernel`` gave.
        x: of shape (batch, units); all tensors are of one type, and lie on the processor without gaps.
        rule: scale, shift and greatest value of the masks, of shape (3, units).
        threshold: masks that do not exceed it are zero.
        rectified: whether the layer reads the positive part of ``x``.
        weights: of shape (units, ..., outputs).
        bias: of shape (outputs,), if there is one.
    """
    (batch, units), outputs = x.shape, weights.shape[-1]
    result = x.new_empty((batch, outputs))
    tensors = (x.data_ptr(), rule.data_ptr(), weights.data_ptr(), None if bias is None else bias.data_ptr())
    function(tensors[0], batch, units, outputs, rectified, tensors[1], threshold, tensors[2], tensors[3], result.data_ptr())
    return result


def mask_in_torch(x: Tensor, rule: Tensor, threshold: float) -> Tensor:
    """The masks of vectors, by torch."""
    scale, shift, most = rule
    return F.threshold(torch.minimum(torch.addcmul(shift, x, scale), most), threshold, 0.0)


def _is_right(function: Kernel, dtype: torch.dtype) -> bool:
    """Whether native code gives what torch does, on a layer with odd sizes."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 27), (27, 19), (19,), (3, 27))
    x, weights, bias, rule = (torch.randn(shape, generator=generator, dtype=dtype, device="cpu") for shape in shapes)
    for rectified in (False, True):
        read = x.clamp(min=0.0) if rectified else x
        expected = (read * mask_in_torch(read, rule, 0.1)) @ weights + bias
        found = gated_linear(function, x, rule, 0.1, rectified, weights, bias)
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            return False
    return True
