"""Networks as plain modules that state their gate places and layers as data."""

from bayesprune.models.description import Conv, Dense, DescribedModel, GatePlace, Layer, MaxPool, PaperQuirk
from bayesprune.models.dropout import KeyedDropout
from bayesprune.models.lenet import LeNet5Caffe, LeNet500300
from bayesprune.models.vgg import VGGLike
from bayesprune.models.zoo import NETWORKS, Network, build_network

__all__ = [
    "NETWORKS",
    "Conv",
    "Dense",
    "DescribedModel",
    "GatePlace",
    "KeyedDropout",
    "Layer",
    "LeNet5Caffe",
    "LeNet500300",
    "MaxPool",
    "Network",
    "PaperQuirk",
    "VGGLike",
    "build_network",
]
