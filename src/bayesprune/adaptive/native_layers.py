"""A layer behind a mask as one call of native code, the mask included."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.mask_rules import MaskRule
from bayesprune.adaptive.native import gated_convolution, gated_linear
from bayesprune.adaptive.native.compiling import Kernel
from bayesprune.adaptive.native.gated_convolution import Steps

_PLAIN = (Tensor, nn.Parameter)


class NativeLayer(nn.Module, ABC):
    """Computes what a gate and the layer behind it do, from the units that an input needs.

    Where native code cannot be used, for gradients or on another device, torch computes the same.

    Args:
        layer: the layer.
        rule: of the mask.
    """

    rule: Tensor

    def __init__(self, layer: AdaptiveLayer, rule: MaskRule) -> None:
        super().__init__()
        self.read, self.rectified, self.threshold = rule.read, rule.rectified, rule.threshold
        self._computes = [layer]  # In a list: the network that it is a part of moves it, and once is enough.
        self.register_buffer("rule", rule.factors.contiguous(), persistent=False)

    @property
    def layer(self) -> AdaptiveLayer:
        return self._computes[0]

    @property
    def available(self) -> bool:
        """Whether there is native code for the layer as it is now."""
        weights = self.layer.by_unit
        return weights.device.type == "cpu" and weights.dtype == self.rule.dtype and self._kernel(weights.dtype) is not None

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self._buffers  # A small layer takes less time than it takes to find the attributes of a module in the usual way.
        return self.computed(x, own["rule"])

    def computed(self, x: Tensor, rule: Tensor) -> Tensor:
        """By another rule: what the layer would take for other masks."""
        if _is_watched(x):
            return self.in_torch(x, rule)
        own: Any = self._computes[0]._buffers
        weights, bias, dtype = own["by_unit"], own["biases"], x.dtype
        function = self._kernel(dtype)
        # Native code believes what it is told: whatever is not as it should be is for torch to complain about.
        fits = _is_plain(x) and all(_lies_as_told(each, dtype) for each in (rule, weights, bias) if each is not None)
        fits = fits and self._takes(x) and x.shape[1] == rule.shape[1] == weights.shape[0]
        if function is None or not fits or (bias is not None and bias.shape != weights.shape[-1:]):
            return self.in_torch(x, rule)
        return self._run(function, x.contiguous(), rule, weights, bias)

    def in_torch(self, x: Tensor, rule: Tensor) -> Tensor:
        """Without native code."""
        read = torch.relu(x) if self.rectified else x
        return self.layer.in_full(read, self.mask(read, rule))

    @abstractmethod
    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        """What is masked, positive part taken, is multiplied by this; of shape (batch, units)."""

    @abstractmethod
    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        """The native code for numbers of a type, if there is any."""

    @abstractmethod
    def _takes(self, x: Tensor) -> bool:
        """Whether inputs are of a shape that native code knows, the number of units apart."""

    @abstractmethod
    def _run(self, function: Kernel, x: Tensor, rule: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor: ...


class NativeLinear(NativeLayer):
    """A linear layer behind the mask of a vector."""

    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        return gated_linear.mask_in_torch(read, rule, self.threshold)

    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        return gated_linear.kernel(dtype)

    def _takes(self, x: Tensor) -> bool:
        return x.ndim == 2

    def _run(self, function: Kernel, x: Tensor, rule: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        return gated_linear.gated_linear(function, x, rule, self.threshold, self.rectified, weights, bias)


class NativeConvolution(NativeLayer):
    """A convolution of images behind the mask of their channels, with ReLU and pooling in between.

    Args:
        layer: the layer.
        rule: of the mask.
        steps: between mask and result.
    """

    def __init__(self, layer: AdaptiveLayer, rule: MaskRule, steps: Steps) -> None:
        super().__init__(layer, rule)
        self.steps = steps

    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        return gated_linear.mask_in_torch(read.mean(dim=(2, 3)), rule, self.threshold)

    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        return gated_convolution.kernel(dtype)

    def _takes(self, x: Tensor) -> bool:
        return x.ndim == 4 and min(x.shape[2:]) >= self.steps.pool and min(self.steps.result_size(x.shape[2], x.shape[3])) > 0

    def _run(self, function: Kernel, x: Tensor, rule: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        return gated_convolution.gated_convolution(function, x, rule, self.threshold, self.steps, weights, bias)


def _is_plain(x: Tensor) -> bool:
    """Whether a tensor's numbers are what its memory, on the processor, holds."""
    return x.is_cpu and x.layout is torch.strided and not x.is_neg() and not x._is_zerotensor()


def _lies_as_told(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_cpu and tensor.dtype == dtype and tensor.is_contiguous()


def _is_watched(x: Tensor) -> bool:
    """Whether somebody follows what torch does with a tensor: for gradients of any kind, to compile it, or to count operations."""
    return (
        type(x) not in _PLAIN
        or (x.requires_grad and torch.is_grad_enabled())
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
    )


def native_layer(layer: AdaptiveLayer, rule: MaskRule | None) -> NativeLayer | None:
    """The native form of a layer, if its mask has a rule."""
    if rule is None:
        return None
    return NativeLinear(layer, rule) if rule.steps is None else NativeConvolution(layer, rule, rule.steps)
