"""How the activations before an input-dependent gate become probabilities.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, equation 20 and its figure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.gates.dependent_beta_bernoulli import PHI_EDGE, VARIANCE_EDGE, DependentBetaBernoulli


@dataclass(frozen=True, eq=False)
class ProbabilityStages:
    """The way from activations to probabilities, each of shape ``(batch, units)``.

    Attributes:
        activations: x, averaged over positions.
        standardised: (x - mu) / sigma, with the running statistics.
        rescaled: scale (x - mu) / sigma + shift.
        phi: the same, clamped to [0, 1].
    """

    activations: Tensor
    standardised: Tensor
    rescaled: Tensor
    phi: Tensor

    def of(self, units: Tensor) -> "ProbabilityStages":
        """The stages of some units: their numbers, or a mask."""
        return ProbabilityStages(self.activations[:, units], self.standardised[:, units], self.rescaled[:, units], self.phi[:, units])


@torch.no_grad()
def probability_stages(gate: DependentBetaBernoulli, activations: Tensor) -> ProbabilityStages:
    """phi_k(x) = clamp(scale_k (x_k - mu_k) / sigma_k + shift_k) in its steps, as in evaluation mode.

    The mask of a unit that BB kept has the expectation E[pi] phi(x).

    Args:
        gate: of which the running statistics and the posterior mean of the shift are taken.
        activations: before the gate, averaged over positions, of shape ``(batch, units)``.
    """
    activations = activations.to(gate.scale.dtype)
    standardised = (activations - gate.running_mean) / torch.sqrt(gate.running_var + VARIANCE_EDGE)
    rescaled = gate.scale * standardised + gate.shift
    return ProbabilityStages(activations, standardised, rescaled, rescaled.clamp(PHI_EDGE, 1.0 - PHI_EDGE))
