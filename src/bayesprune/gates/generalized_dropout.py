"""GD: generalized dropout, a beta prior on the keep probability and a point estimate of it.

References:
    Srinivas and Babu, "Generalized Dropout", 2016.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.distributions import binary_concrete
from bayesprune.distributions.stable import UNIT_EPS
from bayesprune.gates.beta_bernoulli import RAW_ONE
from bayesprune.gates.contract import Gate, Tradeoff, Tunable, require_finite, require_positive, require_probability

_RAW_EDGE = 46.0  # where the published guard of 1e-20 inside the logarithms takes over
_LOGIT_EDGE = math.log((1.0 - UNIT_EPS) / UNIT_EPS)


class GeneralizedDropout(Gate):
    """z_k ~ Bernoulli(k_k), relaxed and drawn for each sample, with k a point estimate under the prior Beta(alpha, beta).

    ``kl`` is the negative log density of the prior, which with both parameters below one drives k to zero or one and is not bounded from
    below by zero. A unit is kept while k exceeds the threshold.

    Args:
        num_units: how many units there are.
        alpha: of the prior.
        beta: of the prior.
        threshold: on the keep probability.
        temperature: of the concrete relaxation.
        keep_init: the logit of k at the start; the published 0.5413 is k = 0.632.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "gd"
    pruned_values: ClassVar[Mapping[str, float]] = {"raw_keep": -20.0}
    tradeoff_meaning = "the prior's alpha"
    default_tradeoff = 1e-4
    noise_draws = 1

    alpha, beta = Tunable(), Tunable()
    alpha_tensor: Tensor
    beta_tensor: Tensor

    def __init__(
        self,
        num_units: int,
        *,
        alpha: float = 1e-4,
        beta: float = 0.5,
        threshold: float = 1e-3,
        temperature: float = 0.1,
        keep_init: float = RAW_ONE,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_positive(alpha=alpha, beta=beta, temperature=temperature)
        require_probability(threshold=threshold)
        require_finite(keep_init=keep_init)
        self.alpha, self.beta = alpha, beta
        self.threshold, self.temperature = threshold, temperature
        self.raw_keep = nn.Parameter(torch.full((num_units,), float(keep_init)))

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        return Tradeoff(hyperparameters={"alpha": tradeoff})

    def kl(self) -> Tensor:
        """The sum of (1 - alpha) log k + (1 - beta) log(1 - k) + log B(alpha, beta)."""
        raw = self.raw_keep.clamp(-_RAW_EDGE, _RAW_EDGE)
        alpha, beta = self.alpha_tensor, self.beta_tensor
        log_normaliser = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
        return ((1.0 - alpha) * F.logsigmoid(raw) + (1.0 - beta) * F.logsigmoid(-raw) + log_normaliser).sum()

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return torch.sigmoid(self.raw_keep)

    def keep(self, x: Tensor | None = None) -> Tensor:
        return self.keep_probability() > self.threshold

    def sample_mask(self, x: Tensor) -> Tensor:
        logits = self.raw_keep.clamp(-_LOGIT_EDGE, _LOGIT_EDGE)
        uniform = self.uniform(0, (x.shape[0], self.num_units), self.raw_keep, samples=x.shape[0])
        return binary_concrete.sample(logits, uniform, self.temperature)

    def mean_mask(self, x: Tensor) -> Tensor:
        probability = self.keep_probability()
        return torch.where(probability > self.threshold, probability, 0.0)
