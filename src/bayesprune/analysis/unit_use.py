"""What becomes of each unit before an input-dependent gate, input by input."""

import torch
from torch import Tensor

from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli

FOR_NO_INPUT, NOT_FOR_THIS_INPUT, USED = 0, 1, 2
"""A unit is pruned for every input (by BB), kept but pruned for this one (by DBB), or used."""


@torch.no_grad()
def unit_use(gate: DependentBetaBernoulli, inputs: Tensor) -> Tensor:
    """Which of the three fates each unit has for each input, of shape ``(batch, units)``.

    Args:
        gate: in evaluation mode, so that its running statistics count.
        inputs: what the gate is given, in the shape in which it is given it.
    """
    kept, used = gate.keep(), gate.keep(inputs)
    return torch.where(used, USED, torch.where(kept, NOT_FOR_THIS_INPUT, FOR_NO_INPUT))
