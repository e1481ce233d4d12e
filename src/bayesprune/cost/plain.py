"""Multiply-accumulates and parameters of the network that is left once the gated units are taken out."""

from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.cost.counts import Counts, read_counts
from bayesprune.models.description import Conv, Layer, MaxPool


@dataclass(frozen=True)
class PlainCost:
    """What is usually reported.

    Attributes:
        macs: multiply-accumulates of the linear and convolutional layers for one input.
        parameters: weights, biases, and the scales and shifts of norms.
    """

    macs: int
    parameters: int


def plain_cost(layers: Sequence[Layer], kept: Sequence[float] | None = None, dependent_kept: Sequence[float] | None = None) -> PlainCost:
    """The cost of the physically smaller network.

    With gates that depend on the input, the MACs are an average over inputs, rounded to a whole number: a layer computes every kept
    output from those inputs that are in use. The parameters are all that must be stored: those of the kept units, in use or not, and
    the scale and shift of each kept unit's gate. Static gates are absorbed into the weights and store nothing.

    Args:
        layers: what ``layers()`` of a described model returns.
        kept: units left at each gate, in the order of ``gate_places()``; ``None`` for the full network.
        dependent_kept: units that an input uses on average at each gate.

    Raises:
        InputError: the counts do not fit the layers.
    """
    running = read_counts(layers, kept, dependent_kept)
    stored = read_counts(layers, kept)
    gates = 2 * sum(running.kept) if running.dependent else 0.0
    macs = sum(_macs(layer, running) for layer in layers)
    parameters = sum(_parameters(layer, stored) for layer in layers) + gates
    return PlainCost(round(macs), round(parameters))


def _macs(layer: Layer, counts: Counts) -> float:
    if isinstance(layer, MaxPool):
        return 0.0
    products = counts.inputs(layer.input_gate, layer.inputs) * counts.outputs(layer.output_gate, layer.outputs)
    return products * layer.kernel**2 * layer.height * layer.width if isinstance(layer, Conv) else products


def _parameters(layer: Layer, counts: Counts) -> float:
    if isinstance(layer, MaxPool):
        return 0.0
    inputs = counts.inputs(layer.input_gate, layer.inputs) * (layer.kernel**2 if isinstance(layer, Conv) else 1)
    outputs = counts.outputs(layer.output_gate, layer.outputs)
    return outputs * (inputs + 1 + (2 if layer.norm else 0))
