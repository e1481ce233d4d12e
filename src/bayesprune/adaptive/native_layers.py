"""A layer behind the mask of a vector as one call of native code, the mask included."""

from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.mask_rules import MaskRule
from bayesprune.adaptive.native.gated_linear import gated_linear, kernel, mask_in_torch


class NativeLayer(nn.Module):
    """Computes from a vector what a gate and the linear layer behind it do, from the units that it needs.

    Where native code cannot be used, for gradients or on another device, torch computes the same.

    Args:
        layer: the linear layer.
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
        return weights.device.type == "cpu" and weights.dtype == self.rule.dtype and kernel(weights.dtype) is not None

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self._buffers  # A small layer takes less time than it takes to find the attributes of a module in the usual way.
        return self.computed(x, own["rule"])

    def computed(self, x: Tensor, rule: Tensor) -> Tensor:
        """By another rule: what the layer would take for other masks."""
        layer: Any = self._computes[0]
        weights, dtype = layer._buffers["by_unit"], x.dtype
        function = kernel(dtype)
        # Native code believes what it is told: whatever is not as it should be is for torch to complain about.
        fits = x.is_cpu and weights.is_cpu and weights.dtype == dtype and rule.dtype == dtype
        fits = fits and x.ndim == 2 and x.shape[1] == rule.shape[1] == weights.shape[0]
        followed = (x.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling()
        if function is None or not fits or followed:
            return self.in_torch(x, rule)
        return gated_linear(
            function, x.contiguous(), rule, self.threshold, self.rectified, weights, layer._modules["layer"]._parameters["bias"]
        )

    def in_torch(self, x: Tensor, rule: Tensor) -> Tensor:
        """Without native code."""
        read = torch.relu(x) if self.rectified else x
        return self.layer.in_full(read, self.mask(read, rule))

    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        """What the vector, positive part taken, is multiplied by."""
        return mask_in_torch(read, rule, self.threshold)
