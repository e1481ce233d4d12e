"""What a network says about itself, as data: where gates may go, and which layers it computes.

The networks know nothing of gates; whoever attaches gates or counts cost reads these records instead of the modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable


@dataclass(frozen=True)
class GatePlace:
    """One place for a gate.

    Attributes:
        site: path of the submodule that the gate is hooked to.
        side: whether the gate multiplies that submodule's input or its output, or the outputs of the heads of an attention layer.
        units: how many units the gate has.
        controls: path of the layer whose weights the gate's units own.
        controls_dim: whether a unit owns an input or an output of that layer.
        channel_dim: the dimension along which the units lie: 1, or -1 for the last one.
        groups: the unit of each channel, where a unit has several.
        inputs_first: whether the layer's weight holds its inputs in the first dimension although layers of its type do not.
    """

    site: str
    side: Literal["input", "output", "head"]
    units: int
    controls: str
    controls_dim: Literal["inputs", "outputs"]
    channel_dim: Literal[1, -1] = 1
    groups: tuple[int, ...] | None = None
    inputs_first: bool = False

    @property
    def name(self) -> str:
        """What the gate at this place is called."""
        return f"{self.site}.{self.side}_gate"


@dataclass(frozen=True)
class LeftAlone:
    """A layer whose units get no gate, and why."""

    layer: str
    reason: str


class PaperQuirk(Enum):
    """Where the paper's published accounting departs from what a layer really computes."""

    ACTIVATED_LOGITS = "an activation is counted at the logits, which have none"
    DEPENDENT_ACTIVATED_LOGITS = "an activation is counted at the logits, but only with input-dependent gates"
    NORM_SIZED_BY_INPUT = "the norm after the layer is counted with the layer's inputs instead of its outputs"


@dataclass(frozen=True)
class Dense:
    """A linear layer with bias.

    Attributes:
        inputs: width of its input.
        outputs: width of its output.
        input_gate: index, in the order of ``gate_places()``, of the gate that decides which inputs arrive.
        output_gate: index of the gate that decides which outputs are needed.
        activation: whether a nonlinearity follows.
        norm: whether a normalisation with scale and shift follows.
        quirk: how the paper's accounting differs from the above.
    """

    inputs: int
    outputs: int
    input_gate: int | None = None
    output_gate: int | None = None
    activation: bool = True
    norm: bool = False
    quirk: PaperQuirk | None = None


@dataclass(frozen=True)
class Conv:
    """A square convolution with bias and a nonlinearity; ``height`` and ``width`` are those of its output, the rest as in `Dense`."""

    kernel: int
    inputs: int
    outputs: int
    height: int
    width: int
    input_gate: int | None = None
    output_gate: int | None = None
    norm: bool = False


@dataclass(frozen=True)
class MaxPool:
    """A 2x2 max-pooling; ``height`` and ``width`` are those of its output, ``gate`` is the one on the channels that it pools."""

    channels: int
    height: int
    width: int
    gate: int | None = None


Layer: TypeAlias = Dense | Conv | MaxPool


@runtime_checkable
class DescribedModel(Protocol):
    """A network that states its gate places and layers."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""

    gate_defaults: ClassVar[Mapping[str, Mapping[str, float]]]
    """Hyper-parameters that the paper chose for the gates of this network, by method, where they differ from the method's own."""

    def gate_places(self, before_norm: bool = False) -> tuple[GatePlace, ...]:
        """The places for gates, in network order.

        Args:
            before_norm: put the gates of normalised layers before the normalisation, as in the paper, instead of after the nonlinearity,
                where a zero stays a zero. Networks without normalisation have the same places either way.
        """

    def layers(self) -> tuple[Layer, ...]:
        """The layers that cost something, in network order."""
