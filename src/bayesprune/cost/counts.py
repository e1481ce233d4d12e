"""How many units each gate keeps, checked against the layers they belong to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.errors import InputError
from bayesprune.models.description import Layer, MaxPool

# An average of whole counts, taken in float32, misses a whole number by about this much in proportion.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Counts:
    """Units that arrive at a layer and units that it must compute.

    Attributes:
        kept: per gate, the units left in the network.
        used: per gate, the units that the next layer reads: the average over inputs if the gates depend on the input, else ``kept``.
        dependent: whether the gates depend on the input.
    """

    kept: tuple[float, ...]
    used: tuple[float, ...]
    dependent: bool

    def outputs(self, gate: int | None, units: int) -> float:
        """What a layer must compute: a gate that depends on the input needs all kept units to decide."""
        return units if gate is None else self.kept[gate]

    def inputs(self, gate: int | None, units: int) -> float:
        """What a layer reads."""
        return units if gate is None else self.used[gate]


def gate_units(layers: Sequence[Layer]) -> tuple[int, ...]:
    """The size of each gate that the layers mention, in the order of ``gate_places()``.

    Raises:
        InputError: there are no layers, a gate has no layer, or layers disagree on the size of a gate.
    """
    if not layers:
        raise InputError("a network without layers has no cost: give the layers() of a described model")
    sizes: dict[int, int] = {}
    for layer in layers:
        if isinstance(layer, MaxPool):
            mentions = [(layer.gate, layer.channels)]
        else:
            mentions = [(layer.input_gate, layer.inputs), (layer.output_gate, layer.outputs)]
        for gate, units in mentions:
            if gate is not None and sizes.setdefault(gate, units) != units:
                raise InputError(f"gate {gate} has {sizes[gate]} units in one layer and {units} in {layer}: correct the model's layers()")
    if sorted(sizes) != list(range(len(sizes))):
        raise InputError(f"the layers mention the gates {sorted(sizes)}: number them from 0, leaving none out, in the model's layers()")
    return tuple(sizes[gate] for gate in range(len(sizes)))


def read_counts(
    layers: Sequence[Layer], kept: Sequence[float] | None, dependent_kept: Sequence[float] | None = None, *, floor: bool = False
) -> Counts:
    """Check the counts and bring them into one form.

    Args:
        layers: the network.
        kept: units left at each gate, in the order of ``gate_places()``; ``None`` for all.
        dependent_kept: units used on average over inputs at each gate, if the gates depend on the input.
        floor: round the averages down to whole units.

    Raises:
        InputError: a count is missing, negative, not a number, or more than there are.
    """
    units = gate_units(layers)
    if kept is None:
        if dependent_kept is not None:
            raise InputError("dependent_kept was given without kept: give the units that the underlying static gates keep as well")
        full = tuple(float(size) for size in units)
        return Counts(full, full, dependent=False)
    left = _numbers("kept", kept, units)
    for gate, (count, size) in enumerate(zip(left, units, strict=True)):
        if not 0 <= count <= size:
            raise InputError(f"kept[{gate}] is {count}, but that gate has {size} units: give a count from 0 to {size}")
    if dependent_kept is None:
        return Counts(left, left, dependent=False)
    averages = _numbers("dependent_kept", dependent_kept, units)
    used = []
    for gate, (average, count) in enumerate(zip(averages, left, strict=True)):
        if not 0 <= average <= count * (1 + _ROUNDING):
            raise InputError(
                f"dependent_kept[{gate}] is {average}, but kept[{gate}] is {count}: an input uses some of the units that are kept, "
                f"so give an average from 0 to {count}"
            )
        used.append(float(math.floor(average * (1 + _ROUNDING))) if floor else min(average, count))
    return Counts(left, tuple(used), dependent=True)


def _numbers(name: str, counts: Sequence[float], units: tuple[int, ...]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(count) for count in counts)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be a sequence of {len(units)} numbers, one for each gate: {error}") from error
    if len(numbers) != len(units):
        raise InputError(f"{name} has {len(numbers)} counts, but the network has {len(units)} gates: give one each, as in gate_places()")
    return numbers
