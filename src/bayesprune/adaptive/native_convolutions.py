"""Convolutions of images by native code, behind masks or not, with ReLU and pooling before them and a normalisation behind them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.lightening import scale_and_shift
from bayesprune.adaptive.mask_rules import MaskRule, find_rule, is_relu
from bayesprune.adaptive.native.compiling import Kernel
from bayesprune.adaptive.native.gated_convolution import Packed, Steps, gated_convolution, geometry_of, kernel, packed
from bayesprune.adaptive.native.gated_linear import mask_in_torch
from bayesprune.adaptive.native_layers import GatedLayer, NativeLayer, NativeLinear
from bayesprune.adaptive.segments import Segment, window_of


@dataclass(frozen=True)
class Norm:
    """A normalisation that alone reads the result of a convolution.

    Attributes:
        layer: with fixed statistics.
        node: its name in the graph.
    """

    layer: nn.BatchNorm2d
    node: str

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that the result depends on."""
        own: Any = self.layer
        return (*own._parameters.values(), own._buffers["running_mean"], own._buffers["running_var"])


class OwnWeights:
    """Weights in the order of native code: taken over when they are first used, and again when they, the bias or the norm have changed.

    Args:
        steps: what is done with images.
        norm: of the result, if there is one.
    """

    def __init__(self, steps: Steps, norm: Norm | None) -> None:
        self.steps, self.norm = steps, norm
        self._taken: tuple[Any, list[Tensor], Packed] | None = None

    def release(self) -> None:
        """Drop them until they are used again."""
        self._taken = None

    def __getstate__(self) -> dict[str, Any]:
        """Without them: a copy's weights lie elsewhere, and a file need not hold them twice."""
        return self.__dict__ | {"_taken": None}

    def normalised(self, result: Tensor) -> Tensor:
        """The result of the convolution behind its norm, by torch."""
        return result if self.norm is None else self.norm.layer(result)

    def of(self, weights: Tensor, bias: Tensor | None, outputs_first: bool = False) -> Packed | None:
        """The weights, of shape (units, ..., height, width, outputs), in their other order; None if they are not for native code."""
        read = [each for each in (weights, bias, *(() if self.norm is None else self.norm.tensors)) if each is not None]
        state = tuple(map(_state, read))
        if self._taken is not None and self._taken[0] == state:
            return self._taken[2]
        by_unit = weights.detach().movedim(0, -1) if outputs_first else weights.detach()
        fits = weights.is_cpu and (bias is None or (bias.is_cpu and bias.dtype == weights.dtype and bias.shape == by_unit.shape[-1:]))
        # torch goes by the weights: a layer whose weights were replaced may still say what its kernel was before.
        if not fits or tuple(by_unit.shape[-3:-1]) != self.steps.kernel_size:
            return None
        own = packed(by_unit, bias, None if self.norm is None else scale_and_shift(self.norm.layer))
        self._taken = state, [each.detach() for each in read], own  # Their memory is kept, so that nothing else can come to lie there.
        return own


def _state(tensor: Tensor) -> tuple[int, torch.dtype, int]:
    """Differs when a tensor's numbers do: they lie elsewhere, or were changed where they lie."""
    return tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version


def _convolved(function: Kernel, x: Tensor, rule: Tensor | None, threshold: float, steps: Steps, own: Packed | None) -> Tensor | None:
    """What native code gives; None for shapes that it does not know."""
    if own is None or x.ndim != 4 or x.dtype != own.weights.dtype or x.shape[1] != own.weights.shape[1]:
        return None
    geometry = geometry_of(steps, *x.shape[1:], own.outputs)
    if geometry is None or (rule is not None and rule.shape[1] != x.shape[1]):
        return None
    return gated_convolution(function, x.contiguous(), rule, threshold, geometry, own)


class GatedConvolution(GatedLayer):
    """A convolution behind the mask of its channels.

    Args:
        layer: computes it in torch.
        rule: of the mask.
        steps: between mask and result.
        consumer: the node of the layer.
        norm: of its result, if there is one.
    """

    def __init__(self, layer: AdaptiveLayer, rule: MaskRule, steps: Steps, consumer: str, norm: Norm | None = None) -> None:
        super().__init__(layer, rule, consumer, consumer if norm is None else norm.node)
        self.steps, self.weights = steps, OwnWeights(steps, norm)

    def release(self) -> None:
        self.weights.release()

    def mask(self, read: Tensor, rule: Tensor) -> Tensor:
        return mask_in_torch(read.mean(dim=(2, 3)), rule, self.threshold)

    def behind(self, result: Tensor) -> Tensor:
        return self.weights.normalised(result)

    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        return kernel(dtype)

    def _run(self, function: Kernel, x: Tensor, rule: Tensor | None) -> Tensor | None:
        own: Any = self._computes[0]._buffers
        return _convolved(function, x, rule, self.threshold, self.steps, self.weights.of(own["by_unit"], own["biases"]))


class PlainConvolution(NativeLayer):
    """A convolution of all that it reads.

    Args:
        name: of the convolution.
        layer: the convolution.
        steps: what is done with what it reads.
        read: the node of that.
        consumer: the node of the layer.
        norm: of its result, if there is one.
    """

    def __init__(self, name: str, layer: nn.Conv2d, steps: Steps, read: str, consumer: str, norm: Norm | None = None) -> None:
        super().__init__(read, consumer, consumer if norm is None else norm.node, None)
        self.name = name
        self._computes = [layer]  # In a list: the network that it is a part of moves it, and once is enough.
        self.steps, self.weights = steps, OwnWeights(steps, norm)

    @property
    def layer(self) -> nn.Conv2d:
        return self._computes[0]

    def release(self) -> None:
        self.weights.release()

    def in_torch(self, x: Tensor, rule: Tensor | None = None) -> Tensor:
        y = torch.relu(x) if self.steps.rectify else x
        y = torch.max_pool2d(y, self.steps.pool) if self.steps.pool > 1 else y
        return self.weights.normalised(self.layer(y))

    def _weights(self) -> Tensor:
        return self.layer.weight

    def _kernel(self, dtype: torch.dtype) -> Kernel | None:
        return kernel(dtype)

    def _run(self, function: Kernel, x: Tensor, rule: Tensor | None) -> Tensor | None:
        own: Any = self._computes[0]._parameters
        if torch.is_grad_enabled() and own["weight"].requires_grad:
            return None  # Native code knows no gradients.
        return _convolved(function, x, None, 0.0, self.steps, self.weights.of(own["weight"], own["bias"], outputs_first=True))


def gated_native(network: fx.GraphModule, segment: Segment, layer: AdaptiveLayer) -> GatedLayer | None:
    """The native form of a layer behind a mask, if that has a rule."""
    rule = find_rule(network, segment)
    if rule is None:
        return None
    if rule.steps is None:
        return NativeLinear(layer, rule, segment.consumer, segment.consumer)
    (consumer,) = (node for node in network.graph.nodes if node.name == segment.consumer)
    return GatedConvolution(layer, rule, rule.steps, segment.consumer, _norm_behind(network, consumer))


def plain_convolutions(network: fx.GraphModule, shapes: dict[fx.Node, torch.Size]) -> list[PlainConvolution]:
    """The native form of all convolutions of images that native code knows, whether there are masks before them or not."""
    found = []
    for node in network.graph.nodes:
        layer = _layer(network, node)
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        if plain and len(shapes[node]) == 4 and len(node.args) == 1 and not node.kwargs:
            read, rectify, pool = _before(network, node)
            sizes: Any = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
            steps = Steps(False, rectify, pool, *sizes)
            found.append(PlainConvolution(str(node.target), layer, steps, read.name, node.name, _norm_behind(network, node)))
    return found


def _before(network: fx.GraphModule, node: fx.Node) -> tuple[fx.Node, bool, int]:
    """What a convolution reads before ReLUs and one pooling that nothing else reads, whether there is a ReLU, and the pooling's side."""
    read, rectify, pool = node.all_input_nodes[0], False, 1
    while len(read.users) == 1:
        layer = _layer(network, read)
        window = None if layer is None else window_of(layer)
        if is_relu(network, read):
            rectify = True
        elif window is not None and pool == 1:
            pool = window
        else:
            break
        read = read.all_input_nodes[0]
    return read, rectify, pool


def _norm_behind(network: fx.GraphModule, node: fx.Node) -> Norm | None:
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    layer: Any = None if reader is None else _layer(network, reader)
    if reader is None or type(layer) is not nn.BatchNorm2d or layer.running_mean is None:
        return None
    own: Any = _layer(network, node)
    types = {each.dtype for each in (layer.running_mean, layer.running_var, layer.weight, layer.bias) if each is not None}
    return Norm(layer, reader.name) if types == {own.weight.dtype} else None


def _layer(network: fx.GraphModule, node: fx.Node) -> Any:
    return network.get_submodule(str(node.target)) if node.op == "call_module" else None
