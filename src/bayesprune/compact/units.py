"""What a gate says about its units, as statements about the elements that it multiplies."""

import torch
from torch import Tensor

from bayesprune.gates import Gate
from bayesprune.removal.status import on_dimension


def factors_of(gate: Gate, rank: int) -> Tensor:
    """What a gate multiplies each element by in the naive approximation, as a status of its input."""
    return spread(gate, gate.mean_mask(torch.empty(0)).detach().cpu().double(), rank)


def spread(gate: Gate, per_unit: Tensor, rank: int) -> Tensor:
    """A vector over units as a status of the gate's input."""
    units = gate.units
    if units.groups is not None:
        per_unit = per_unit[units.groups.cpu()]
        if units.groups.ndim > 1:
            return per_unit.unsqueeze(0)
    return on_dimension(per_unit, units.channel_dim % rank, rank)
