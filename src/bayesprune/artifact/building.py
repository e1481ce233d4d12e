"""From a blueprint to a network: first without memory, then with the tensors of a file."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.artifact.blueprint import Blueprint, TensorPlan
from bayesprune.artifact.layers import make_layer, recurrent_tensors
from bayesprune.artifact.network import LoadedNetwork
from bayesprune.artifact.tensors import own_tensors, submodule
from bayesprune.artifact.values import MalformedError

_ATTRIBUTE = re.compile(r"[A-Za-z0-9_]{1,200}", re.ASCII)
_DEEPEST_PATH = 40


def build(blueprint: Blueprint, certificate: dict[str, Any] | None, cost: dict[str, Any] | None) -> LoadedNetwork:
    """The network in evaluation mode, its tensors without memory.

    Raises:
        MalformedError: a name is not one that a module can have, or layers and tensors do not agree.
    """
    names = blueprint.tensors.names()
    if recurrent_tensors(blueprint.layers.values()) > len(names):  # Known before they are made, which may take long.
        raise MalformedError("the recurrent layers have more tensors than the file")
    network = LoadedNetwork(blueprint, certificate, cost)
    expected: dict[str, Tensor] = {}
    for path in sorted(blueprint.layers, key=lambda path: path.count(".")):
        layer = make_layer(blueprint.layers[path])
        owner, name = _home(network, path)
        owner.add_module(name, layer)
        expected |= {f"{path}.{name}": tensor for name, tensor in own_tensors(layer).items()}
    missing = expected.keys() - set(names)
    if missing:
        raise MalformedError(f"the tensor '{min(missing)}' is missing")
    for name in names:
        plan = blueprint.tensors.plan(name)
        assert plan is not None
        if name in expected:
            _check_fits(name, plan, expected[name])
        else:
            _reserve(network, name, plan)
    fill_in(network, {name: torch.empty(plan.shape, dtype=plan.dtype, device="meta") for name, plan in blueprint.tensors.stored.items()})
    return network.eval()


def fill_in(network: LoadedNetwork, stored: Mapping[str, Tensor]) -> None:
    """Give a network its tensors; those that are tied become the same object."""
    table = network.blueprint.tensors
    made: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        plan = table.stored[name]
        made[name] = nn.Parameter(tensor, requires_grad=plan.trainable) if plan.role == "parameter" else tensor
    for name in table.names():
        path, _, attribute = name.rpartition(".")
        setattr(submodule(network, path), attribute, made[table.aliases.get(name, name)])


def _check_fits(name: str, plan: TensorPlan, expected: Tensor) -> None:
    role = "parameter" if isinstance(expected, nn.Parameter) else "buffer"
    if plan.shape != tuple(expected.shape) or plan.role != role or plan.dtype.is_floating_point != expected.dtype.is_floating_point:
        raise MalformedError(
            f"the tensor '{name}' is a {plan.role} of shape {plan.shape}; the layer has a {role} of shape {tuple(expected.shape)}"
        )


def _reserve(network: LoadedNetwork, name: str, plan: TensorPlan) -> None:
    """Room for a tensor that belongs to no layer."""
    owner, attribute = _home(network, name)
    if plan.role == "parameter":
        owner.register_parameter(attribute, None)
    else:
        owner.register_buffer(attribute, None, persistent=plan.persistent)


def _home(network: LoadedNetwork, path: str) -> tuple[nn.Module, str]:
    """The module that is to hold what is at a path, and under which name; modules on the way are made."""
    *way, last = path.split(".")
    if len(way) >= _DEEPEST_PATH:
        raise MalformedError(f"the path {path[:60]!r} is too deep")
    module: nn.Module = network
    for name in way:
        inner = module._modules.get(name)
        if inner is None:
            _check_free(module, name, path)
            inner = nn.Module()
            module.add_module(name, inner)
        module = inner
    _check_free(module, last, path)
    return module, last


def _check_free(module: nn.Module, name: str, path: str) -> None:
    registries = (module._modules, module._parameters, module._buffers, vars(module))
    if not _ATTRIBUTE.fullmatch(name) or hasattr(type(module), name) or any(name in each for each in registries):
        raise MalformedError(f"{path[:60]!r} cannot be the name of a layer or tensor")
