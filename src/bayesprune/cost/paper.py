"""FLOPs and memory as the paper's tables count them.

Multiplications and additions are counted one by one; norms and static gates are absorbed into the layer before them and cost no FLOPs.
Memory is in floats: the weights, and for a convolution the im2col buffer of its input, but not its bias.

    dense, i inputs and o outputs:   FLOPs (2i - 1) o + o [bias] + o [activation]           memory i o + o
    conv, kernel k, output H x W:    FLOPs o H W [(2 k^2 i - 1) + 1 + 1]                    memory k^2 i H W + k^2 i o
    2x2 max-pooling to H x W:        FLOPs 4 c H W                                          memory 0
    norm after a layer:              FLOPs 0                                                memory 2 o

Static gates leave n units, which count on both sides of a layer. Gates that depend on the input use d of the n units on average: a layer
computes all its n outputs, since the gate decides by looking at them, and the next layer and the pooling see d. Such a gate itself costs,
per kept unit, 5 FLOPs (2 H W + 4 after a convolution, which it averages over the image first) and 4 floats of memory.

References:
    Lee, Kim, Yoon, Lee, Hwang, Yang: Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout (arXiv:1805.10896),
    tables 1 and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.cost.counts import Counts, gate_units, read_counts
from bayesprune.models.description import Conv, Dense, Layer, MaxPool, PaperQuirk

DENSE_GATE_FLOPS = 5
GATE_MEMORY = 4


@dataclass(frozen=True)
class PaperCost:
    """Operations for one input, and memory in floats, as the paper counts them."""

    flops: float
    memory: float


@dataclass(frozen=True)
class RelativeCost:
    """The columns of the paper's tables: how many times fewer FLOPs, and memory in percent of the full network's."""

    speedup: float
    memory_percent: float


def paper_cost(
    layers: Sequence[Layer],
    kept: Sequence[float] | None = None,
    dependent_kept: Sequence[float] | None = None,
    *,
    floor: bool = True,
    published_memory_indexing: bool = False,
) -> PaperCost:
    """The cost of a network in the paper's convention.

    Args:
        layers: what ``layers()`` of a described model returns.
        kept: units left at each gate, in the order of ``gate_places()``; ``None`` for the full network.
        dependent_kept: units that an input uses on average at each gate, for gates that depend on the input; ``kept`` is then what the
            static gates below them keep.
        floor: round these averages down to whole units, as the published code does.
        published_memory_indexing: count the memory of a normalised convolutional network with dependent gates as the published code
            does, which is one gate off: every convolution but the first is counted with the gates of the next one, and the last gate
            with the units of the one before it. This adds a point or two to the percentages of VGG-like networks. Networks without
            norms, and static gates, are published correctly and do not change.

    Raises:
        InputError: the counts do not fit the layers.
    """
    counts = read_counts(layers, kept, dependent_kept, floor=floor)
    flops = sum(_flops(layer, counts) for layer in layers)
    memory = sum(_memory(layer, counts) for layer in layers)
    if not counts.dependent:
        return PaperCost(flops, memory)
    flops += _gate_flops(layers, counts)
    if published_memory_indexing and any(_is_misindexed(layer) for layer in layers):
        return PaperCost(flops, _misindexed_memory(layers, counts))
    return PaperCost(flops, memory + GATE_MEMORY * sum(counts.kept))


def relative_cost(
    layers: Sequence[Layer],
    kept: Sequence[float] | None = None,
    dependent_kept: Sequence[float] | None = None,
    *,
    floor: bool = True,
    published_memory_indexing: bool = False,
) -> RelativeCost:
    """How much a pruned network saves; the arguments are those of `paper_cost`.

    The speedup is a finite number always: a network with no unit left still adds its biases, and one without any operation counts as one.
    """
    full = paper_cost(layers)
    pruned = paper_cost(layers, kept, dependent_kept, floor=floor, published_memory_indexing=published_memory_indexing)
    return RelativeCost(speedup=full.flops / max(pruned.flops, 1.0), memory_percent=100.0 * pruned.memory / max(full.memory, 1.0))


def _product_flops(inputs: float) -> float:
    """Multiplications and additions of one scalar product: 2i - 1, and none, instead of a negative number, when no input is left."""
    return max(2 * inputs - 1, 0.0)


def _flops(layer: Layer, counts: Counts) -> float:
    if isinstance(layer, MaxPool):
        return 4 * counts.inputs(layer.gate, layer.channels) * layer.height * layer.width
    inputs = counts.inputs(layer.input_gate, layer.inputs)
    outputs = counts.outputs(layer.output_gate, layer.outputs)
    if isinstance(layer, Conv):
        return outputs * layer.height * layer.width * (_product_flops(layer.kernel**2 * inputs) + 2)
    return outputs * (_product_flops(inputs) + (2 if _counts_activation(layer, counts) else 1))


def _counts_activation(layer: Dense, counts: Counts) -> bool:
    if layer.quirk is PaperQuirk.DEPENDENT_ACTIVATED_LOGITS:
        return layer.activation or counts.dependent
    return layer.activation or layer.quirk is PaperQuirk.ACTIVATED_LOGITS


def _memory(layer: Layer, counts: Counts) -> float:
    if isinstance(layer, MaxPool):
        return 0.0
    inputs = counts.inputs(layer.input_gate, layer.inputs)
    outputs = counts.outputs(layer.output_gate, layer.outputs)
    if isinstance(layer, Conv):
        return layer.kernel**2 * inputs * (layer.height * layer.width + outputs) + (2 * outputs if layer.norm else 0)
    normed = inputs if layer.quirk is PaperQuirk.NORM_SIZED_BY_INPUT else outputs
    return inputs * outputs + outputs + (2 * normed if layer.norm else 0)


def _gate_flops(layers: Sequence[Layer], counts: Counts) -> float:
    per_unit = [DENSE_GATE_FLOPS] * len(gate_units(layers))
    for layer in layers:
        if isinstance(layer, Conv) and layer.output_gate is not None:
            per_unit[layer.output_gate] = 2 * layer.height * layer.width + 4
    return sum(flops * units for flops, units in zip(per_unit, counts.kept, strict=True))


def _is_misindexed(layer: Layer) -> bool:
    return isinstance(layer, Conv) and layer.norm and layer.input_gate is not None and layer.output_gate is not None


def _misindexed_memory(layers: Sequence[Layer], counts: Counts) -> float:
    next_gate = Counts(_of_next_gate(counts.kept), _of_next_gate(counts.used), counts.dependent)
    memory = sum(_memory(layer, next_gate if _is_misindexed(layer) else counts) for layer in layers)
    return memory + GATE_MEMORY * (sum(counts.kept[:-1]) + counts.kept[-2])


def _of_next_gate(units: tuple[float, ...]) -> tuple[float, ...]:
    """Every gate has the units of the next one; the last has none to take and keeps its own."""
    return (*units[1:], units[-1])
