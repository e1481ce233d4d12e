"""What a gate says about its units, as statements about the elements that it multiplies."""

import torch
from torch import Tensor

from bayesprune.attach.units import spread
from bayesprune.gates import Gate


def factors_of(gate: Gate, rank: int) -> Tensor:
    """What a gate multiplies each element by in the naive approximation, as a status of its input."""
    return spread(gate, gate.mean_mask(torch.empty(0)).detach().cpu().double(), rank)
