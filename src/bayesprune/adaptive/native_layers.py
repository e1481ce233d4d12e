"""A layer, with the mask before it and what else stands around it, as one call of native code."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.mask_rules import MaskRule
from bayesprune.adaptive.native import gated_linear
from bayesprune.adaptive.native.compiling import Kernel

_PLAIN = (Tensor, nn.Parameter)


class NativeLayer(nn.Module, ABC):
    """Computes what a layer and its surroundings do. Where native code cannot be used, for gradients or on another device, torch does.

    Nodes of the graph are given by name, so that they are found in a copy too.

    Args:
        read: the node of what it reads.
        consumer: the node of the layer.
        replaces: the node whose result it gives: the layer's, or that of a normalisation behind it.
        rule: scale, shift and greatest value of the masks, of shape (3, units); None where there are no masks.
    """

    rule: Tensor | None

    def __init__(self, read: str, consumer: str, replaces: str, rule: Tensor | None) -> None:
        super().__init__()
        self.read, self.consumer, self.replaces = read, consumer, replaces
        self.register_buffer("rule", None if rule is None else rule.contiguous(), persistent=False)

    @property
    def available(self) -> bool:
        """Whether there is native code for the layer as it is now."""
        weights = self._weights()
        typed = self.rule is None or weights.dtype == self.rule.dtype
        return weights.device.type == "cpu" and typed and self._kernel(weights.dtype) is not None

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self._buffers  # A small layer takes less time than it takes to find the attributes of a module in the usual way.
        return self.computed(x, own["rule"])

    def computed(self, x: Tensor, rule: Tensor | None) -> Tensor:
        """By another rule: what the layer would take for other masks."""
        if is_watched(x):
            return self.in_torch(x, rule)
        # Native code believes what it is told: whatever is not as it should be is for torch to complain about.
        function = self._kernel(x.dtype) if is_plain(x) and (rule is None or lies_as_told(rule, x.dtype)) else None
        result = None if function is None else self._run(function, x, rule)
        return self.in_torch(x, rule) if result is None else result

    def release(self) -> None:
        """Drop what is kept for native code alone, until it is used again."""

    @abstractmethod
    def in_torch(self, x: Tensor, rule: Tensor | None) -> Tensor:
        """Without native code."""

    @abstractmethod
    def _weights(self) -> Tensor: ...

    @abstractmethod
    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        """The native code for numbers of a type, if there is any."""

    @abstractmethod
    def _run(self, function: Kernel, x: Tensor, rule: Tensor | None) -> Tensor | None:
        """By native code; None where inputs, or the layer's weights, are of shapes that it does not know."""


class GatedLayer(NativeLayer):
    """One behind a mask.

    Args:
        layer: computes it in torch.
        rule: of the mask.
        consumer: the node of the layer.
        replaces: the node whose result this gives.
    """

    def __init__(self, layer: AdaptiveLayer, rule: MaskRule, consumer: str, replaces: str) -> None:
        super().__init__(rule.read, consumer, replaces, rule.factors)
        self.rectified, self.threshold = rule.rectified, rule.threshold
        self._computes = [layer]  # In a list: the network that it is a part of moves it, and once is enough.

    @property
    def layer(self) -> AdaptiveLayer:
        return self._computes[0]

    def in_torch(self, x: Tensor, rule: Tensor | None) -> Tensor:
        assert rule is not None
        read = self._read(x)
        return self.behind(self.layer.in_full(read, self.mask(read, rule)))

    def besides(self, x: Tensor, result: Tensor) -> object:
        """All that it does beside the layer, by torch: for measuring."""
        assert self.rule is not None
        return self.mask(self._read(x), self.rule), self.behind(result)

    def _read(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self.rectified else x

    @abstractmethod
    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        """What is masked, positive part taken, is multiplied by this; of shape (batch, units)."""

    def behind(self, result: Tensor) -> Tensor:
        """What is done with the layer's result."""
        return result

    def _weights(self) -> Tensor:
        return self.layer.by_unit


class NativeLinear(GatedLayer):
    """A linear layer behind the mask of a vector."""

    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        return gated_linear.mask_in_torch(read, rule, self.threshold)

    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        return gated_linear.kernel(dtype)

    def _run(self, function: Kernel, x: Tensor, rule: Tensor | None) -> Tensor | None:
        own: Any = self._computes[0]._buffers
        weights, bias = own["by_unit"], own["biases"]
        fits = (
            rule is not None
            and x.ndim == 2
            and x.shape[1] == rule.shape[1] == weights.shape[0]
            and lies_as_told(weights, x.dtype)
            and (bias is None or (lies_as_told(bias, x.dtype) and bias.shape == weights.shape[-1:]))
        )
        if rule is None or not fits:
            return None
        return gated_linear.gated_linear(function, x.contiguous(), rule, self.threshold, self.rectified, weights, bias)


def is_plain(x: Tensor) -> bool:
    """Whether a tensor's numbers are what its memory, on the processor, holds."""
    return x.is_cpu and x.layout is torch.strided and not x.is_neg() and not x._is_zerotensor()


def lies_as_told(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether native code can read a tensor of the network's own."""
    return tensor.is_cpu and tensor.dtype == dtype and tensor.is_contiguous()


def is_watched(x: Tensor) -> bool:
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
