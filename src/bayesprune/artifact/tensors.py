"""The tensors of a module by their paths: finding them, and telling tied ones from separate ones."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesprune.artifact.blueprint import TensorPlan, TensorTable
from bayesprune.artifact.values import MalformedError, dtype_name
from bayesprune.errors import InputError


def submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at a path, found in the registries of modules alone: no attribute is read."""
    module: nn.Module | None = root
    for name in path.split(".") if path else ():
        module = module._modules.get(name) if module is not None else None
    if module is None:
        raise KeyError(f"there is no module {path[:60]!r}")
    return module


def tensor_at(root: nn.Module, path: str) -> Tensor:
    """The parameter or buffer at a path."""
    owner, _, name = path.rpartition(".")
    module = submodule(root, owner)
    parameter = module._parameters.get(name)
    tensor = module._buffers.get(name) if parameter is None else parameter
    if tensor is None:
        raise KeyError(f"there is no tensor {path[:60]!r}")
    return tensor


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module itself."""
    return {name: tensor for name, tensor in (*module._parameters.items(), *module._buffers.items()) if tensor is not None}


def tensor_table(root: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[TensorTable, dict[str, Tensor]]:
    """Which tensors to store, and under which other names they are known.

    Args:
        root: the module that holds them.
        tensors: all of them by name; what the module has not registered as a buffer is a parameter, perhaps computed from others.
    """
    plans: dict[str, TensorPlan] = {}
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise InputError(f"the tensor '{name}' is sparse or quantised: make it dense and of floating-point type to save it")
        owner, attribute = _owner(root, name)
        is_buffer = owner is not None and attribute in owner._buffers
        key = _identity(tensor, is_buffer)
        if key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        stored[name] = tensor
        plans[name] = _plan(name, tensor, is_buffer, owner is None or attribute not in owner._non_persistent_buffers_set)
    return TensorTable(plans, aliases), stored


def _plan(name: str, tensor: Tensor, is_buffer: bool, persistent: bool) -> TensorPlan:
    try:
        dtype_name(tensor.dtype)
    except MalformedError as error:
        raise InputError(f"the tensor '{name}' cannot be saved: {error}") from error
    if is_buffer:
        return TensorPlan(tuple(tensor.shape), tensor.dtype, "buffer", persistent=persistent)
    return TensorPlan(tuple(tensor.shape), tensor.dtype, "parameter", trainable=tensor.requires_grad)


def _identity(tensor: Tensor, is_buffer: bool) -> object:
    """Equal for tensors that are the same memory, whether or not they are the same object."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg(), is_buffer)


def _owner(root: nn.Module, name: str) -> tuple[nn.Module | None, str]:
    path, _, attribute = name.rpartition(".")
    try:
        return submodule(root, path), attribute
    except KeyError:
        return None, attribute
