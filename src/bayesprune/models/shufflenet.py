"""ShuffleNetV2: half of the channels pass each unit untouched, and a shuffle mixes the halves.

References:
    Ma, Zhang, Zheng, Sun: ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design (arXiv:1807.11164), table 5.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models.widths import require_positive


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Deal the channels of ``groups`` equal parts out in turn: the first of each part, then the second of each, ..."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).reshape(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """The unit of stride 1: splits the channels, convolves the second half, joins and shuffles."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(*_pointwise(half, half), *_depthwise(half, stride=1), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((kept, self.branch(changed)), dim=1), 2)


class DownsamplingUnit(nn.Module):
    """The unit of stride 2: both branches convolve the whole input, each to half of the outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.shortcut = nn.Sequential(*_depthwise(inputs, stride=2), *_pointwise(inputs, half))
        self.branch = nn.Sequential(*_pointwise(inputs, half), *_depthwise(half, stride=2), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        return channel_shuffle(torch.cat((self.shortcut(x), self.branch(x)), dim=1), 2)


class ShuffleNetV2(nn.Module):
    """A 3x3 convolution, stages that begin with a unit of stride 2, a 1x1 convolution, average pooling and a linear classifier.

    Args:
        depths: how many units each stage has.
        channels: of each stage, even numbers.
        stem: channels of the first convolution.
        head: channels of the last one.
        num_classes: width of the output.
        in_channels: of the images.
        small_stem: give the first convolution stride 1 and no max-pooling, for small images; otherwise it has stride 2 and one follows.
    """

    def __init__(
        self,
        depths: Sequence[int] = (2, 2),
        channels: Sequence[int] = (16, 32),
        stem: int = 8,
        head: int = 64,
        num_classes: int = 10,
        in_channels: int = 3,
        small_stem: bool = True,
    ) -> None:
        super().__init__()
        _check_stages(depths, channels)
        require_positive({"stem": stem, "head": head, "num_classes": num_classes, "in_channels": in_channels})
        self.conv1 = _conv_norm_relu(in_channels, stem, kernel=3, stride=1 if small_stem else 2)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        inputs = stem
        for depth, outputs in zip(depths, channels, strict=True):
            stages.append(nn.Sequential(DownsamplingUnit(inputs, outputs), *(ShuffleUnit(outputs) for _ in range(depth - 1))))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.conv5 = _conv_norm_relu(inputs, head, kernel=1, stride=1)
        self.fc = nn.Linear(head, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stages(x))
        logits: Tensor = self.fc(x.mean([2, 3]))
        return logits


def shufflenet_v2(num_classes: int = 1000, in_channels: int = 3) -> ShuffleNetV2:
    """ShuffleNetV2 of width 1.0 for ImageNet, 2.3 million parameters."""
    return ShuffleNetV2((4, 8, 4), (116, 232, 464), 24, 1024, num_classes, in_channels, small_stem=False)


def _check_stages(depths: Sequence[int], channels: Sequence[int]) -> None:
    if len(depths) != len(channels) or not depths:
        raise InputError(f"give as many depths as channels, one of each per stage, not {len(depths)} and {len(channels)}")
    for stage, (depth, width) in enumerate(zip(depths, channels, strict=True)):
        require_positive({f"depths[{stage}]": depth, f"channels[{stage}]": width})
        if width % 2:
            raise InputError(f"channels[{stage}] must be even, since a unit splits its channels into halves, not {width}")


def _conv_norm_relu(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _pointwise(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def _depthwise(channels: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False), nn.BatchNorm2d(channels)
