"""The VGG-like network of the CIFAR experiments: 13 convolutions in five groups, each group closed by a max-pooling, and two linear layers.

References:
    Zagoruyko: 92.45% on CIFAR-10 in Torch (2015); used in section 5.2 of Lee et al., Adaptive Network Sparsification with Dependent
    Variational Beta-Bernoulli Dropout (arXiv:1805.10896).
"""

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models.description import Conv, Dense, GatePlace, Layer, MaxPool, PaperQuirk
from bayesprune.models.dropout import KeyedDropout
from bayesprune.models.widths import require_positive

IMAGE_SIZE = 32
GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
FIRST_BLOCK_DROPOUT = 0.3
BLOCK_DROPOUT = 0.4
LINEAR_DROPOUT = 0.5


class VGGLike(nn.Module):
    """Blocks of 3x3 convolution, batch norm and ReLU, then linear, batch norm, ReLU and the classifier, for 32x32 images of three channels.

    A block that ends its group is followed by a max-pooling, every other one by fixed dropout. That is meant for pretraining: switch it
    off with ``fixed_dropout = False`` once gates do its work.

    Args:
        num_classes: width of the output.
        groups: the widths of the convolutions, group by group; each group halves the image.
        hidden: width of the hidden linear layer.
    """

    gate_defaults: ClassVar[Mapping[str, Mapping[str, float]]] = {}

    def __init__(self, num_classes: int = 10, groups: Sequence[Sequence[int]] = GROUPS, hidden: int = 512) -> None:
        super().__init__()
        _check_groups(groups)
        require_positive({"num_classes": num_classes, "hidden": hidden})
        self.input_shape = (3, IMAGE_SIZE, IMAGE_SIZE)
        self.groups = tuple(tuple(group) for group in groups)
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 3
        for group in self.groups:
            for position, outputs in enumerate(group, start=1):
                tail = ("pool", nn.MaxPool2d(2)) if position == len(group) else ("dropout", _block_dropout(first=not blocks))
                blocks[f"block{len(blocks) + 1}"] = _block(inputs, outputs, tail)
                inputs = outputs
        side = IMAGE_SIZE >> len(self.groups)
        self.features = nn.Sequential(blocks)
        self.fc1_dropout = KeyedDropout(LINEAR_DROPOUT)
        self.fc1 = nn.Linear(inputs * side * side, hidden)
        self.fc1_norm = nn.BatchNorm1d(hidden)
        self.fc1_relu = nn.ReLU()
        self.fc2_dropout = KeyedDropout(LINEAR_DROPOUT)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(1)
        x = self.fc1_relu(self.fc1_norm(self.fc1(self.fc1_dropout(x))))
        logits: Tensor = self.fc2(self.fc2_dropout(x))
        return logits

    @property
    def fixed_dropout(self) -> bool:
        """Whether the fixed dropout of pretraining acts in training mode."""
        return any(module.enabled for module in self.modules() if isinstance(module, KeyedDropout))

    @fixed_dropout.setter
    def fixed_dropout(self, enabled: bool) -> None:
        for module in self.modules():
            if isinstance(module, KeyedDropout):
                module.enabled = enabled

    def gate_places(self, before_norm: bool = False) -> tuple[GatePlace, ...]:
        """After the ReLU of every block (before its norm, at the convolution, if asked), and the inputs of the two linear layers."""
        places = []
        for number, width in enumerate(self._widths(), start=1):
            conv = f"features.block{number}.conv"
            site = conv if before_norm else f"features.block{number}.relu"
            places.append(GatePlace(site, "output", width, controls=conv, controls_dim="outputs"))
        places.append(GatePlace("fc1", "input", self.fc1.in_features, controls="fc1", controls_dim="inputs", channel_dim=-1))
        places.append(GatePlace("fc2", "input", self.fc2.in_features, controls="fc2", controls_dim="inputs", channel_dim=-1))
        return tuple(places)

    def layers(self) -> tuple[Layer, ...]:
        """The convolutions and poolings, and the two linear layers."""
        layers: list[Layer] = []
        inputs, gate, side = 3, 0, IMAGE_SIZE
        widths = iter(self._widths())
        for group in self.groups:
            for outputs in itertools.islice(widths, len(group)):
                layers.append(Conv(3, inputs, outputs, side, side, gate - 1 if gate else None, gate, norm=True))
                inputs, gate = outputs, gate + 1
            side //= 2
            layers.append(MaxPool(inputs, side, side, gate - 1))
        fc1, fc2 = self.fc1, self.fc2
        layers.append(Dense(fc1.in_features, fc1.out_features, gate, gate + 1, norm=True, quirk=PaperQuirk.NORM_SIZED_BY_INPUT))
        layers.append(Dense(fc2.in_features, fc2.out_features, gate + 1, activation=False, quirk=PaperQuirk.ACTIVATED_LOGITS))
        return tuple(layers)

    def _widths(self) -> list[int]:
        """Of the convolutions, as they are: units may have been taken out since they were made."""
        return [module.out_channels for module in self.features.modules() if isinstance(module, nn.Conv2d)]


def _check_groups(groups: Sequence[Sequence[int]]) -> None:
    most = IMAGE_SIZE.bit_length() - 1
    if not 1 <= len(groups) <= most:
        raise InputError(
            f"a {IMAGE_SIZE}x{IMAGE_SIZE} image can be halved {most} times: give 1 to {most} groups of widths, not {len(groups)}"
        )
    for number, group in enumerate(groups):
        if not isinstance(group, Sequence) or not group:
            raise InputError(f"groups[{number}] is {group!r}: a group is a sequence of at least one width")
        require_positive({f"groups[{number}][{position}]": width for position, width in enumerate(group)})


def _block_dropout(first: bool) -> KeyedDropout:
    return KeyedDropout(FIRST_BLOCK_DROPOUT if first else BLOCK_DROPOUT)


def _block(inputs: int, outputs: int, tail: tuple[str, nn.Module]) -> nn.Sequential:
    name, module = tail
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            [
                ("conv", nn.Conv2d(inputs, outputs, 3, padding=1)),
                ("norm", nn.BatchNorm2d(outputs)),
                ("relu", nn.ReLU()),
                (name, module),
            ]
        )
    )
