"""U-Net: an encoder and a decoder of images, joined at every resolution.

References:
    Ronneberger, Fischer, Brox: U-Net: Convolutional Networks for Biomedical Image Segmentation (arXiv:1505.04597). The convolutions are
    padded and followed by batch normalisation, as is usual today, so that the output has the size of the input.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.models.widths import require_positive


class DoubleConv(nn.Module):
    """Twice a 3x3 convolution, batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)))


class UNet(nn.Module):
    """Scores for every pixel of images whose sides are multiples of ``2 ** depth``.

    Args:
        depth: how many times the image is halved.
        width: channels at full resolution; each halving doubles them.
        num_classes: channels of the output.
        in_channels: of the images.
    """

    def __init__(self, depth: int = 3, width: int = 8, num_classes: int = 2, in_channels: int = 1) -> None:
        super().__init__()
        require_positive({"depth": depth, "width": width, "num_classes": num_classes, "in_channels": in_channels})
        widths = [width << level for level in range(depth + 1)]
        self.encoder = nn.ModuleList(DoubleConv(*pair) for pair in zip([in_channels, *widths], widths[:-1], strict=False))
        self.pool = nn.MaxPool2d(2)
        self.middle = DoubleConv(widths[-2], widths[-1])
        upwards = widths[-2::-1]
        self.upsamplings = nn.ModuleList(nn.ConvTranspose2d(2 * outputs, outputs, 2, stride=2) for outputs in upwards)
        self.decoder = nn.ModuleList(DoubleConv(2 * outputs, outputs) for outputs in upwards)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for upsampling, level, skip in zip(self.upsamplings, self.decoder, reversed(skips), strict=True):
            x = level(torch.cat([skip, upsampling(x)], dim=1))
        scores: Tensor = self.head(x)
        return scores
