"""What figures show of a network's units, as numbers: averages over each class, and single inputs of some classes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesprune.analysis.activations import dependent_gates, unit_activations
from bayesprune.analysis.class_averages import ClassAverages, class_averages
from bayesprune.analysis.probabilities import probability_stages


@dataclass(frozen=True, eq=False)
class UnitRecord:
    """How a network with input-dependent gates uses the units that BB kept.

    Attributes:
        averages: over each class, by the gate's name.
        labels: of the single inputs.
        uses: for each of them and of some gates, E[z | x] of every unit, and zero where the unit is pruned for the input; of shape
            ``(inputs, units)``.
    """

    averages: Mapping[str, ClassAverages]
    labels: Tensor
    uses: Mapping[str, Tensor]


@torch.no_grad()
def record_units(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    num_classes: int,
    classes: Sequence[int],
    layers: Sequence[int],
    count: int,
) -> UnitRecord:
    """Look at a network with input-dependent gates, in evaluation mode.

    Args:
        model: with gates that depend on the input.
        batches: inputs and labels.
        num_classes: how many the labels tell apart.
        classes: whose first inputs are looked at one by one, in this order.
        layers: which gates are looked at for these: their numbers in network order, from 1.
        count: inputs of each class at most.
    """
    inputs, labels = _first_of(batches, classes, count)
    dependent = list(dependent_gates(model).items())
    chosen = [dependent[layer - 1] for layer in layers if layer <= len(dependent)]
    uses = {}
    if len(inputs):
        arrived = unit_activations(model, inputs)
        for name, gate in chosen:
            kept = gate.keep()
            probability = gate.keep_probability()[kept] * probability_stages(gate, arrived[name]).of(kept).phi
            uses[name] = torch.where(probability > gate.threshold, probability, 0.0).cpu()
    return UnitRecord(class_averages(model, batches, num_classes), labels, uses)


def likeness(uses: Tensor, labels: Tensor, first: int, second: int) -> float | None:
    """How alike the units are that inputs of two classes use: the mean share of common ones among those that either of two uses.

    Of one class with itself, different inputs are compared. None if there are no two inputs, or if no unit is ever used.

    Args:
        uses: of shape ``(inputs, units)``, zero for a unit that is not used.
        labels: of the inputs.
        first: a class.
        second: another, or the same.
    """
    used = (uses > 0).double()
    one, other = used[labels == first], used[labels == second]
    common = one @ other.T
    either = one.sum(1)[:, None] + other.sum(1)[None, :] - common
    counted = either > 0
    if first == second:
        counted &= ~torch.eye(len(one), dtype=torch.bool)
    return float((common[counted] / either[counted]).mean()) if bool(counted.any()) else None


def _first_of(batches: Iterable[tuple[Tensor, Tensor]], classes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """The first inputs of each class, class by class, and their labels on the processor."""
    found: dict[int, list[Tensor]] = {each: [] for each in classes}
    shape: Tensor | None = None
    for inputs, labels in batches:
        shape = inputs[:0]
        for each, own in found.items():
            own += list(inputs[labels == each][: count - len(own)])
    together = [each for own in found.values() for each in own]
    numbers = [each for each, own in found.items() for _ in own]
    assert shape is not None
    return torch.stack(together) if together else shape, torch.tensor(numbers, dtype=torch.long)
