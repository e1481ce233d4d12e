"""Functions of ``torch.nn.functional`` (and their ATen forms) as the layers they are.

A layer holds its parameters and knows about training mode, and removal then has one rule for it, however the model spells the call.
"""

import inspect
from collections.abc import Callable, Container
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree


class NotALayerError(Exception):
    """The call cannot be written as a layer: its parameters are computed, or shared with another call."""


LayerMaker = Callable[[dict[str, Any], dict[fx.Node, Tensor]], nn.Module]
"""Makes a layer from the call's arguments by name and the tensors behind its attribute nodes."""


def _parameter(node: Any, tensors: dict[fx.Node, Tensor]) -> nn.Parameter | None:
    if node is None:
        return None
    if not isinstance(node, fx.Node) or node not in tensors:
        raise NotALayerError
    tensor = tensors[node]
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach(), requires_grad=False)


def _adopt(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """Give a layer that was made without memory the tensors of the call."""
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter) or tensor is None:
            layer.register_parameter(name, tensor)
        else:
            layer.register_buffer(name, tensor)
    return layer


def _linear(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight, bias = _parameter(call["weight"], tensors), _parameter(call.get("bias"), tensors)
    assert weight is not None
    return adopted_linear(weight, bias)


def adopted_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A linear layer with these parameters."""
    return _adopt(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta"), weight=weight, bias=bias)


def _convolution(transposed: bool) -> LayerMaker:
    def make(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
        weight, bias = _parameter(call["weight"], tensors), _parameter(call.get("bias"), tensors)
        assert weight is not None
        groups = call.get("groups", 1)
        inputs, outputs = (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
        names = ("ConvTranspose" if transposed else "Conv") + f"{weight.ndim - 2}d"
        options = {name: call[name] for name in ("stride", "padding", "output_padding", "dilation") if name in call}
        options = {name: _per_dimension(value, weight.ndim - 2) for name, value in options.items()}
        layer = getattr(nn, names)(inputs, outputs, tuple(weight.shape[2:]), groups=groups, bias=bias is not None, device="meta", **options)
        return _adopt(layer, weight=weight, bias=bias)

    return make


def _batch_norm(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight, bias = _parameter(call.get("weight"), tensors), _parameter(call.get("bias"), tensors)
    mean, var = tensors.get(call["running_mean"]), tensors.get(call["running_var"])
    if mean is None or var is None or (weight is None) != (bias is None):
        raise NotALayerError
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(call["input"].meta["shape"])]
    layer = kind(len(mean), eps=call.get("eps", 1e-5), momentum=call.get("momentum", 0.1) or None, affine=weight is not None, device="meta")
    counter = torch.zeros((), dtype=torch.int64, device=mean.device)
    return _adopt(layer, weight=weight, bias=bias, running_mean=mean, running_var=var, num_batches_tracked=counter)


def _instance_norm(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight, bias = _parameter(call.get("weight"), tensors), _parameter(call.get("bias"), tensors)
    mean, var = (None if call.get(name) is None else tensors.get(call[name]) for name in ("running_mean", "running_var"))
    own_statistics = call.get("use_input_stats", True)
    shape = call["input"].meta["shape"]
    kind = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}.get(len(shape))
    if kind is None or (weight is None) != (bias is None) or (mean is None) != (var is None) or own_statistics != (mean is None):
        raise NotALayerError
    options = {"eps": call.get("eps", 1e-5), "momentum": call.get("momentum", 0.1)}
    layer = kind(shape[1], affine=weight is not None, track_running_stats=mean is not None, device="meta", **options)
    _adopt(layer, weight=weight, bias=bias)
    if mean is None:
        return layer
    counter = torch.zeros((), dtype=torch.int64, device=mean.device)
    return _adopt(layer, running_mean=mean, running_var=var, num_batches_tracked=counter)


def _layer_norm(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight, bias = _parameter(call.get("weight"), tensors), _parameter(call.get("bias"), tensors)
    layer = nn.LayerNorm(tuple(call["normalized_shape"]), eps=call.get("eps", 1e-5), device="meta", elementwise_affine=weight is not None)
    return _adopt(layer, weight=weight, bias=bias)


def _rms_norm(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight = _parameter(call.get("weight"), tensors)
    layer = nn.RMSNorm(tuple(call["normalized_shape"]), eps=call.get("eps"), device="meta", elementwise_affine=weight is not None)
    return _adopt(layer, weight=weight)


def _group_norm(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight, bias = _parameter(call.get("weight"), tensors), _parameter(call.get("bias"), tensors)
    if weight is None:
        raise NotALayerError
    return _adopt(nn.GroupNorm(call["num_groups"], len(weight), eps=call.get("eps", 1e-5), device="meta"), weight=weight, bias=bias)


def _local_response_norm(call: dict[str, Any], _: dict[fx.Node, Tensor]) -> nn.Module:
    return nn.LocalResponseNorm(**{name: value for name, value in call.items() if name != "input"})


def _embedding(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight = _parameter(call["weight"], tensors)
    assert weight is not None
    padding = call.get("padding_idx")
    padding = None if padding is not None and padding < 0 else padding
    return _adopt(nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=padding, device="meta"), weight=weight)


def _prelu(call: dict[str, Any], tensors: dict[fx.Node, Tensor]) -> nn.Module:
    weight = _parameter(call["weight"], tensors)
    assert weight is not None
    return _adopt(nn.PReLU(len(weight), device="meta"), weight=weight)


def _dropout(kind: type[nn.Module]) -> LayerMaker:
    return lambda call, _: kind(call.get("p", 0.5))


def _pooling(kind: type[nn.Module]) -> LayerMaker:
    allowed = inspect.signature(kind.__init__).parameters

    def make(call: dict[str, Any], _: dict[fx.Node, Tensor]) -> nn.Module:
        options = {name: value for name, value in call.items() if name in allowed and name != "input"}
        stride = options.get("stride")
        if stride is None or stride == []:
            options.pop("stride", None)
        if any(isinstance(value, fx.Node) for value in pytree.tree_leaves(options)) or options.get("return_indices"):
            raise NotALayerError  # A window that is computed from the size of the input.
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})

    return make


def _per_dimension(value: Any, dimensions: int) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value) * dimensions if len(value) == 1 else tuple(value)
    return value


MAKERS: dict[Any, tuple[LayerMaker, tuple[str, ...]]] = {}
"""Callable or ATen name -> how to make the layer, and the call's parameters in order."""


def _enter(make: LayerMaker, parameters: str, *targets: Any) -> None:
    for target in targets:
        MAKERS[target] = (make, tuple(parameters.split()))


_CONV = "input weight bias stride padding dilation groups"
_TRANSPOSED = "input weight bias stride padding output_padding groups dilation"
_enter(_linear, "input weight bias", F.linear, "linear.default")
for _dims in (1, 2, 3):
    _conv, _deconv = getattr(F, f"conv{_dims}d"), getattr(F, f"conv_transpose{_dims}d")
    _enter(_convolution(False), _CONV, _conv, getattr(torch, f"conv{_dims}d"), f"conv{_dims}d.default", f"conv{_dims}d.padding")
    _overload = "default" if _dims == 1 else "input"
    _enter(_convolution(True), _TRANSPOSED, _deconv, getattr(torch, f"conv_transpose{_dims}d"), f"conv_transpose{_dims}d.{_overload}")
    _max = "input kernel_size stride padding dilation ceil_mode return_indices"
    _enter(
        _pooling(getattr(nn, f"MaxPool{_dims}d")),
        _max,
        getattr(F, f"max_pool{_dims}d"),
        getattr(torch, f"max_pool{_dims}d"),
        f"max_pool{_dims}d.default",
    )
    _average = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
    _enter(_pooling(getattr(nn, f"AvgPool{_dims}d")), _average, getattr(F, f"avg_pool{_dims}d"), f"avg_pool{_dims}d.default")
    _adaptive = "input output_size return_indices"
    _enter(
        _pooling(getattr(nn, f"AdaptiveAvgPool{_dims}d")),
        _adaptive,
        getattr(F, f"adaptive_avg_pool{_dims}d"),
        f"adaptive_avg_pool{_dims}d.default",
    )
    _enter(_pooling(getattr(nn, f"AdaptiveMaxPool{_dims}d")), _adaptive, getattr(F, f"adaptive_max_pool{_dims}d"))
_enter(_batch_norm, "input running_mean running_var weight bias training momentum eps", F.batch_norm)
_enter(
    _batch_norm, "input weight bias running_mean running_var training momentum eps cudnn_enabled", torch.batch_norm, "batch_norm.default"
)
_enter(_instance_norm, "input running_mean running_var weight bias use_input_stats momentum eps", F.instance_norm)
_enter(
    _instance_norm,
    "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled",
    torch.instance_norm,
    "instance_norm.default",
)
_enter(_layer_norm, "input normalized_shape weight bias eps cudnn_enable", F.layer_norm, torch.layer_norm, "layer_norm.default")
_enter(_rms_norm, "input normalized_shape weight eps", F.rms_norm, "rms_norm.default")
_enter(_group_norm, "input num_groups weight bias eps cudnn_enabled", F.group_norm, torch.group_norm, "group_norm.default")
_enter(_local_response_norm, "input size alpha beta k", F.local_response_norm)
_enter(_embedding, "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse", F.embedding)
_enter(_embedding, "weight input padding_idx scale_grad_by_freq sparse", torch.embedding, "embedding.default")
_enter(_prelu, "input weight", F.prelu, torch.prelu, "prelu.default")
_enter(_dropout(nn.Dropout), "input p training inplace", F.dropout, torch.dropout, "dropout.default")
_enter(_dropout(nn.Dropout1d), "input p training inplace", F.dropout1d)
_enter(_dropout(nn.Dropout2d), "input p training inplace", F.dropout2d, "feature_dropout.default")
_enter(_dropout(nn.Dropout3d), "input p training inplace", F.dropout3d)


def layer_maker(target: Any) -> tuple[LayerMaker, tuple[str, ...]] | None:
    """How to write a call of this function as a layer, if it is one."""
    if hasattr(target, "_overloadname"):
        return MAKERS.get(f"{target._schema.name.removeprefix('aten::')}.{target._overloadname}") if target.namespace == "aten" else None
    try:
        return MAKERS.get(target)
    except TypeError:
        return None


def layer_path(weight: str, name: str, recorded: fx.Node | None, taken: Container[str], reserved: Container[str] = ()) -> str:
    """The path of a layer: that of the module whose weight it has, if that is called as a module; otherwise a name of our own.

    Args:
        weight: path of the weight; empty if there is none.
        name: of the call, for a name of our own.
        recorded: the call in the recorded graph.
        taken: paths that others have.
        reserved: paths that are no names of our own.
    """
    owner, _, attribute = weight.rpartition(".")
    stack = {} if recorded is None else recorded.meta.get("nn_module_stack") or {}
    innermost, kind = next(reversed(stack.values())) if stack else ("", "")
    in_attention = "Attention" in str(kind) and owner == f"{innermost}.out_proj"
    called = owner and attribute == "weight" and (owner == innermost or in_attention)
    path = owner if called else f"{owner}.{name}" if owner else name
    while path in taken or (not called and path in reserved):
        path += "_again"
    return path
