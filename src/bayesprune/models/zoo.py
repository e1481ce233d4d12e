"""The networks by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch
from torch import nn

from bayesprune.errors import InputError, did_you_mean
from bayesprune.models.description import DescribedModel, GatePlace
from bayesprune.models.lenet import LeNet5Caffe, LeNet500300
from bayesprune.models.vgg import VGGLike


@dataclass(frozen=True)
class Network:
    """How to build a network, and the data sets whose images fit it."""

    build: Callable[[int], nn.Module]
    datasets: tuple[str, ...]


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "lenet-500-300": Network(LeNet500300, ("mnist",)),
        "lenet5-caffe": Network(LeNet5Caffe, ("mnist",)),
        "vgg-like": Network(VGGLike, ("cifar10", "cifar100")),
    }
)


def build_network(name: str, num_classes: int = 10) -> nn.Module:
    """A freshly initialised network with the paper's widths.

    Args:
        name: a key of `NETWORKS`.
        num_classes: width of its output.

    Raises:
        InputError: no network has that name.
    """
    return known_network(name).build(num_classes)


@cache
def gate_places(name: str) -> tuple[GatePlace, ...]:
    """Where a network has its gates, however many classes it tells apart.

    Raises:
        InputError: no network has that name.
    """
    with torch.device("meta"):  # No weight is needed.
        network = build_network(name)
    assert isinstance(network, DescribedModel)
    return network.gate_places()


def known_network(name: str) -> Network:
    """The entry of a network, or an error that says which there are."""
    if name not in NETWORKS:
        hint = did_you_mean(name.lower(), NETWORKS)
        raise InputError(f"no network is called {name!r}: choose one of {', '.join(NETWORKS)}.{hint}")
    return NETWORKS[name]
