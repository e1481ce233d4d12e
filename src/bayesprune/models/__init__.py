"""Networks as plain modules.

Those of the paper state their gate places and layers as data (`DescribedModel`) and are found by name in `NETWORKS`; the others are the
usual architectures, to be pruned as any user's network would be.
"""

from bayesprune.models.densenet import DenseNet, densenet121
from bayesprune.models.description import Conv, Dense, DescribedModel, GatePlace, Layer, MaxPool, PaperQuirk
from bayesprune.models.dropout import KeyedDropout
from bayesprune.models.lenet import LeNet5Caffe, LeNet500300
from bayesprune.models.mobilenet import MobileNetV2, mobilenet_v2
from bayesprune.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet50
from bayesprune.models.shufflenet import ShuffleNetV2, shufflenet_v2
from bayesprune.models.unet import UNet
from bayesprune.models.vgg import VGGLike
from bayesprune.models.vit import VisionTransformer, vit_b_16
from bayesprune.models.zoo import NETWORKS, Network, build_network

__all__ = [
    "NETWORKS",
    "BasicBlock",
    "Bottleneck",
    "Conv",
    "Dense",
    "DenseNet",
    "DescribedModel",
    "GatePlace",
    "KeyedDropout",
    "Layer",
    "LeNet5Caffe",
    "LeNet500300",
    "MaxPool",
    "MobileNetV2",
    "Network",
    "PaperQuirk",
    "ResNet",
    "ShuffleNetV2",
    "UNet",
    "VGGLike",
    "VisionTransformer",
    "build_network",
    "densenet121",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "shufflenet_v2",
    "vit_b_16",
]
