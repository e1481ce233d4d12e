"""MobileNetV2: inverted residuals with depthwise convolutions and linear bottlenecks.

References:
    Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks (arXiv:1801.04381), table 2.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models.widths import require_positive

IMAGENET_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
SMALL_STAGES = ((1, 8, 1, 1), (4, 12, 2, 2), (4, 16, 2, 2))


class InvertedResidual(nn.Module):
    """Widens with a 1x1 convolution, filters each channel with a 3x3 one, and narrows with a 1x1 one that no nonlinearity follows.

    Args:
        inputs: channels that come in.
        outputs: channels that go out; the block adds its input to them where both shapes agree.
        expand: the inner width is this many times ``inputs``; the widening is left out for 1.
        stride: of the 3x3 convolution.
    """

    def __init__(self, inputs: int, outputs: int, expand: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expand
        self.use_shortcut = stride == 1 and inputs == outputs
        widen = [] if expand == 1 else [_conv_norm(inputs, inner, kernel=1)]
        self.conv = nn.Sequential(
            *widen,
            _conv_norm(inner, inner, kernel=3, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.use_shortcut else out


class MobileNetV2(nn.Module):
    """A 3x3 convolution, stages of inverted residuals, a 1x1 convolution, average pooling, dropout and a linear classifier.

    Args:
        stages: for each stage its expansion, channels, number of blocks, and the stride of its first block.
        stem: channels of the first convolution.
        head: channels of the last one.
        num_classes: width of the output.
        in_channels: of the images.
        dropout: rate before the classifier.
        small_stem: give the first convolution stride 1, for small images, instead of 2.
    """

    def __init__(
        self,
        stages: Sequence[tuple[int, int, int, int]] = SMALL_STAGES,
        stem: int = 8,
        head: int = 64,
        num_classes: int = 10,
        in_channels: int = 3,
        dropout: float = 0.0,
        small_stem: bool = True,
    ) -> None:
        super().__init__()
        require_positive({"stem": stem, "head": head, "num_classes": num_classes, "in_channels": in_channels, "len(stages)": len(stages)})
        blocks: list[nn.Module] = [_conv_norm(in_channels, stem, kernel=3, stride=1 if small_stem else 2)]
        inputs = stem
        for number, stage in enumerate(stages):
            if len(stage) != 4:
                raise InputError(f"stages[{number}] is {stage!r}: a stage is its expansion, channels, number of blocks and stride")
            require_positive({f"stages[{number}][{position}]": size for position, size in enumerate(stage)})
            expand, outputs, depth, first_stride = stage
            for position in range(depth):
                blocks.append(InvertedResidual(inputs, outputs, expand, first_stride if position == 0 else 1))
                inputs = outputs
        self.features = nn.Sequential(*blocks, _conv_norm(inputs, head, kernel=1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(head, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean([2, 3])
        logits: Tensor = self.classifier(x)
        return logits


def mobilenet_v2(num_classes: int = 1000, in_channels: int = 3) -> MobileNetV2:
    """MobileNetV2 of width 1.0 for ImageNet, 3.5 million parameters."""
    return MobileNetV2(IMAGENET_STAGES, 32, 1280, num_classes, in_channels, dropout=0.2, small_stem=False)


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))
