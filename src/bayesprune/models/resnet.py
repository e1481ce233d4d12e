"""Residual networks for images, with basic or bottleneck blocks.

References:
    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (arXiv:1512.03385). As is usual today, a bottleneck strides in its 3x3
    convolution and not in its first 1x1.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesprune.models.widths import require_positive


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        activated: Tensor = self.relu(out)
        return activated


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, the second of which widens by `expansion`, beside a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        activated: Tensor = self.relu(out + identity)
        return activated


class ResNet(nn.Module):
    """A stem, stages of residual blocks that each double the width and (but for the first) halve the image, and a linear classifier.

    Args:
        block: the kind of block, `BasicBlock` or `Bottleneck`.
        depths: how many blocks each stage has; the stages are called ``layer1``, ``layer2``, ...
        width: of the stem and of the blocks of the first stage.
        num_classes: width of the output.
        in_channels: of the images.
        small_stem: begin with a 3x3 convolution, for small images such as CIFAR's; otherwise with a 7x7 convolution of stride 2 and a
            max-pooling, as for ImageNet.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        depths: Sequence[int] = (2, 2, 2),
        width: int = 16,
        num_classes: int = 10,
        in_channels: int = 3,
        small_stem: bool = True,
    ) -> None:
        super().__init__()
        require_positive({"width": width, "num_classes": num_classes, "in_channels": in_channels, "len(depths)": len(depths)})
        require_positive({f"depths[{stage}]": depth for stage, depth in enumerate(depths)})
        if small_stem:
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        self.stage_names = tuple(f"layer{stage + 1}" for stage in range(len(depths)))
        inputs = width
        for stage, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(inputs, width << stage, stride))
                inputs = (width << stage) * block.expansion
            self.add_module(self.stage_names[stage], nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
        x = torch.flatten(self.avgpool(x), 1)
        logits: Tensor = self.fc(x)
        return logits


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """ResNet-18 for ImageNet, 11.7 million parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), 64, num_classes, in_channels, small_stem=False)


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """ResNet-50 for ImageNet, 25.6 million parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes, in_channels, small_stem=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
