"""Whether classes use the same units: averages of probabilities over each class, and their correlations.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 5.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesprune.analysis.activations import dependent_gates, unit_activations
from bayesprune.analysis.probabilities import probability_stages

_FLAT = 1e-6
"""Averages that differ by less than this from unit to unit are the same but for rounding."""


@dataclass(frozen=True, eq=False)
class ClassAverages:
    """Averages over the inputs of each class, of the units that BB kept.

    Attributes:
        phi: of the factor that depends on the input, of shape ``(classes, units)``; NaN for a class without inputs.
        pi: E[pi] of each unit, which is the same for all inputs.
    """

    phi: Tensor
    pi: Tensor

    @property
    def keep_probability(self) -> Tensor:
        """Of E[pi] phi(x), which is what equation 20 calls phi."""
        return self.pi * self.phi


@torch.no_grad()
def class_averages(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> dict[str, ClassAverages]:
    """The averages of the probabilities over each class, by the gate's name.

    Gates that do not depend on the input are left out.

    Args:
        model: with input-dependent gates.
        batches: inputs and labels.
        num_classes: how many the labels tell apart.
    """
    dependent = dependent_gates(model)
    kept = {name: gate.keep() for name, gate in dependent.items()}
    sums = {name: torch.zeros(num_classes, int(kept[name].sum()), dtype=torch.float64) for name in dependent}
    sizes = torch.zeros(num_classes, dtype=torch.float64)
    for inputs, labels in batches:
        arrived = unit_activations(model, inputs)
        labels = labels.cpu()
        for name, gate in dependent.items():
            phi = probability_stages(gate, arrived[name]).of(kept[name]).phi
            sums[name].index_add_(0, labels, phi.cpu().double())
        sizes.index_add_(0, labels, torch.ones(len(labels), dtype=torch.float64))
    pi = {name: gate.keep_probability()[kept[name]].cpu().double() for name, gate in dependent.items()}
    return {name: ClassAverages(total / sizes[:, None], pi[name]) for name, total in sums.items()}


def class_correlations(averages: Tensor) -> Tensor:
    """The correlation coefficients, over units, between the averages of each two classes: ``(classes, classes)``.

    They are NaN, for undefined, where a class's averages are the same for all units; so they all are with fewer than two units.

    Args:
        averages: of shape ``(classes, units)``.
    """
    classes, units = averages.shape
    if units < 2:
        return torch.full((classes, classes), torch.nan, dtype=torch.float64)
    centred = averages.double() - averages.double().mean(dim=1, keepdim=True)
    lengths = centred.norm(dim=1)
    flat = ~(centred.abs().amax(dim=1) > _FLAT)
    directions = torch.where(flat[:, None], torch.nan, centred / lengths[:, None])
    return (directions @ directions.T).clamp(-1.0, 1.0)


def mean_between_classes(correlations: Tensor) -> float | None:
    """The mean of the correlations between two different classes that are defined; None if none is."""
    different = correlations[~torch.eye(len(correlations), dtype=torch.bool)]
    defined = different[~different.isnan()]
    return float(defined.mean()) if len(defined) else None
