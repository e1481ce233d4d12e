"""DenseNet: every layer reads what all layers before it in its block have written.

References:
    Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks (arXiv:1608.06993), the variant BC.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.models.widths import require_positive


class DenseLayer(nn.Module):
    """Norm, ReLU and a 1x1 convolution to ``bottleneck * growth`` channels, the same with 3x3 to ``growth``, appended to the input."""

    def __init__(self, inputs: int, growth: int, bottleneck: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, bottleneck * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(self.relu1(self.norm1(x)))
        new = self.conv2(self.relu2(self.norm2(new)))
        return torch.cat([x, new], dim=1)


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them that halve channels and image, and a linear classifier.

    Args:
        depths: how many layers each block has.
        growth: channels that each layer adds.
        stem: channels of the first convolution.
        bottleneck: inner width of a layer, in multiples of ``growth``.
        num_classes: width of the output.
        in_channels: of the images.
        small_stem: begin with a 3x3 convolution, for small images; otherwise with a 7x7 convolution of stride 2 and a max-pooling.
    """

    def __init__(
        self,
        depths: Sequence[int] = (3, 3, 3),
        growth: int = 8,
        stem: int = 16,
        bottleneck: int = 4,
        num_classes: int = 10,
        in_channels: int = 3,
        small_stem: bool = True,
    ) -> None:
        super().__init__()
        require_positive({"growth": growth, "stem": stem, "bottleneck": bottleneck, "num_classes": num_classes})
        require_positive({"in_channels": in_channels, "len(depths)": len(depths)})
        require_positive({f"depths[{block}]": depth for block, depth in enumerate(depths)})
        features = _stem(in_channels, stem, small_stem)
        channels = stem
        for number, depth in enumerate(depths, start=1):
            features[f"block{number}"] = nn.Sequential(
                *(DenseLayer(channels + position * growth, growth, bottleneck) for position in range(depth))
            )
            channels += depth * growth
            if number < len(depths):
                features[f"transition{number}"] = _transition(channels, channels // 2)
                channels //= 2
        features["norm"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(features)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x), inplace=True)
        x = F.adaptive_avg_pool2d(x, (1, 1))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def densenet121(num_classes: int = 1000, in_channels: int = 3) -> DenseNet:
    """DenseNet-121 for ImageNet, 8.0 million parameters."""
    return DenseNet((6, 12, 24, 16), 32, 64, 4, num_classes, in_channels, small_stem=False)


def _stem(in_channels: int, width: int, small: bool) -> OrderedDict[str, nn.Module]:
    if small:
        return OrderedDict(stem_conv=nn.Conv2d(in_channels, width, 3, padding=1, bias=False))
    return OrderedDict(
        stem_conv=nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False),
        stem_norm=nn.BatchNorm2d(width),
        stem_relu=nn.ReLU(inplace=True),
        stem_pool=nn.MaxPool2d(3, stride=2, padding=1),
    )


def _transition(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.AvgPool2d(2),
    )
