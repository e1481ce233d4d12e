"""Convolutions of many models as products of matrices.

Vectorised over models, a convolution becomes one with groups, for which GPUs have slow kernels: on LeNet5-Caffe they take most of a step.
The patches under the kernel, multiplied by the weights, are one batched product instead, and copying them is cheap there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW = 256
"""Columns of a product that are too few to keep a GPU busy."""


def convolve_patches(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What the layer computes for inputs of shape (N, C, H, W): the kernels times the patches, one a column.

    Patches are copied along the rows of an image, which is how they lie in memory. Where an image has few, those of all images are the
    columns of one product; else each image has its own, which needs no other layout than the image's.
    """
    assert not isinstance(layer.padding, str)
    (top, left), (down, right), (tall, wide) = layer.padding, layer.stride, layer.dilation
    x = F.pad(x, (left, left, top, top)) if top or left else x
    rows, columns = weight.shape[2:]
    # Row by row of the kernel and column by column: a compiler makes one kernel of few slices that are put together, not of many.
    patches = _shifted(_shifted(x, 2, 2, rows, down, tall), 4, 3, columns, right, wide)
    count, height, width = len(x), *patches.shape[-2:]
    kernels = weight.flatten(1)
    if height * width < _FEW:
        together = patches.flatten(1, 3).transpose(0, 1).reshape(kernels.shape[1], count * height * width)
        outputs = (kernels @ together).view(len(kernels), count, height, width).transpose(0, 1).contiguous()
    else:
        apart = patches.reshape(count, kernels.shape[1], height * width)
        outputs = (kernels.expand(count, -1, -1) @ apart).view(count, len(kernels), height, width)
    return outputs if bias is None else outputs + bias[:, None, None]


def _shifted(x: Tensor, dim: int, new: int, size: int, stride: int, dilation: int) -> Tensor:
    """What each element of a kernel sees along a dimension, in a new dimension."""
    reach = x.shape[dim] - dilation * (size - 1) - 1
    starts = [dilation * index for index in range(size)]
    index = [slice(None)] * dim
    return torch.stack([x[(*index, slice(start, start + reach + 1, stride))] for start in starts], dim=new)


@contextmanager
def as_products(model: nn.Module) -> Iterator[None]:
    """Let the convolutions of a model that can be written as products be computed so, for a while."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d) and _can_be(layer)]
    for layer in layers:
        layer._conv_forward = MethodType(convolve_patches, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer._conv_forward


def _can_be(layer: nn.Conv2d) -> bool:
    return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
