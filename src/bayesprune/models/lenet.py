"""The two LeNets of the MNIST experiments: LeNet-500-300 (fully connected) and LeNet5-Caffe (convolutional).

References:
    Lee, Kim, Yoon, Lee, Hwang, Yang: Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout (arXiv:1805.10896),
    section 5.1.
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models.description import Conv, Dense, GatePlace, Layer, MaxPool, PaperQuirk
from bayesprune.models.widths import require_positive

GATE_DEFAULTS: Mapping[str, Mapping[str, float]] = {"bb": {"keep_init": -1.0}, "dbb": {"keep_init": -1.0}, "l0": {"keep_init": 0.0}}


class LeNet500300(nn.Module):
    """784-500-300-10 with ReLU; the gates are on the inputs of the three linear layers, the pixels included.

    Args:
        num_classes: width of the output.
        widths: of the two hidden layers.
        input_shape: of one input, which is flattened; inputs that are flat already are accepted as well.
    """

    gate_defaults = GATE_DEFAULTS

    def __init__(self, num_classes: int = 10, widths: tuple[int, int] = (500, 300), input_shape: tuple[int, ...] = (1, 28, 28)) -> None:
        super().__init__()
        if not isinstance(widths, Sequence) or len(widths) != 2:
            raise InputError(f"LeNet-500-300 has two hidden layers: give two widths, not {widths!r}")
        if not input_shape:
            raise InputError("input_shape is empty: give the shape of one input, without the batch dimension")
        first, second = widths
        require_positive({"num_classes": num_classes, "widths[0]": first, "widths[1]": second})
        require_positive({f"input_shape[{axis}]": size for axis, size in enumerate(input_shape)})
        self.input_shape = tuple(input_shape)
        self.fc1 = nn.Linear(math.prod(input_shape), first)
        self.relu1 = nn.ReLU()
        self.fc2 = nn.Linear(first, second)
        self.relu2 = nn.ReLU()
        self.fc3 = nn.Linear(second, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.fc1(x.flatten(1)))
        x = self.relu2(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits

    def gate_places(self, before_norm: bool = False) -> tuple[GatePlace, ...]:
        """The inputs of the three linear layers; there is no normalisation, so ``before_norm`` changes nothing."""
        return (
            GatePlace("fc1", "input", self.fc1.in_features, controls="fc1", controls_dim="inputs", channel_dim=-1),
            GatePlace("fc2", "input", self.fc2.in_features, controls="fc2", controls_dim="inputs", channel_dim=-1),
            GatePlace("fc3", "input", self.fc3.in_features, controls="fc3", controls_dim="inputs", channel_dim=-1),
        )

    def layers(self) -> tuple[Layer, ...]:
        """The three linear layers."""
        quirk = PaperQuirk.DEPENDENT_ACTIVATED_LOGITS
        return (
            Dense(self.fc1.in_features, self.fc1.out_features, input_gate=0, output_gate=1),
            Dense(self.fc2.in_features, self.fc2.out_features, input_gate=1, output_gate=2),
            Dense(self.fc3.in_features, self.fc3.out_features, input_gate=2, activation=False, quirk=quirk),
        )


class LeNet5Caffe(nn.Module):
    """Two 5x5 convolutions without padding, each with ReLU and max-pooling, then 800-500-10, for 28x28 images of one channel.

    The gates are on the outputs of the convolutions, before ReLU, and on the inputs of the linear layers. The first of these has a unit for
    each of the 800 flattened positions, and so is finer than the 50 channels before it.

    Args:
        num_classes: width of the output.
        channels: of the two convolutions.
        hidden: width of the hidden linear layer.
    """

    gate_defaults = GATE_DEFAULTS

    def __init__(self, num_classes: int = 10, channels: tuple[int, int] = (20, 50), hidden: int = 500) -> None:
        super().__init__()
        if not isinstance(channels, Sequence) or len(channels) != 2:
            raise InputError(f"LeNet5-Caffe has two convolutions: give two numbers of channels, not {channels!r}")
        first, second = channels
        require_positive({"num_classes": num_classes, "channels[0]": first, "channels[1]": second, "hidden": hidden})
        self.input_shape = (1, 28, 28)
        self.conv1 = nn.Conv2d(1, first, 5)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(second * 4 * 4, hidden)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.relu3(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits

    def gate_places(self, before_norm: bool = False) -> tuple[GatePlace, ...]:
        """Two convolutions' outputs and two linear layers' inputs; there is no normalisation, so ``before_norm`` changes nothing."""
        return (
            GatePlace("conv1", "output", self.conv1.out_channels, controls="conv1", controls_dim="outputs"),
            GatePlace("conv2", "output", self.conv2.out_channels, controls="conv2", controls_dim="outputs"),
            GatePlace("fc1", "input", self.fc1.in_features, controls="fc1", controls_dim="inputs", channel_dim=-1),
            GatePlace("fc2", "input", self.fc2.in_features, controls="fc2", controls_dim="inputs", channel_dim=-1),
        )

    def layers(self) -> tuple[Layer, ...]:
        """Both convolutions with their poolings, and both linear layers."""
        first, second = self.conv1.out_channels, self.conv2.out_channels
        return (
            Conv(5, 1, first, 24, 24, output_gate=0),
            MaxPool(first, 12, 12, gate=0),
            Conv(5, first, second, 8, 8, input_gate=0, output_gate=1),
            MaxPool(second, 4, 4, gate=1),
            Dense(self.fc1.in_features, self.fc1.out_features, input_gate=2, output_gate=3),
            Dense(self.fc2.in_features, self.fc2.out_features, input_gate=3, activation=False),
        )
