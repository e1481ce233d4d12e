"""BB: variational beta-Bernoulli dropout.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 4.1.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.distributions import binary_concrete, kumaraswamy
from bayesprune.distributions.stable import logit_of_log
from bayesprune.gates.contract import Gate, require_finite, require_positive, require_probability, sums_by_gate

RAW_ONE = 0.5413
"""softplus(0.5413) is one."""
_PI_EDGE = 1e-6


def concentration_a(raw_a: Tensor) -> Tensor:
    """a = softplus(raw a), raw a held above -10."""
    return F.softplus(raw_a.clamp(min=-10.0))


def concentration_b(raw_b: Tensor) -> Tensor:
    """b = softplus(raw b), raw b held within [-10, 50]."""
    return F.softplus(raw_b.clamp(-10.0, 50.0))


def sample_log_pi(raw_a: Tensor, raw_b: Tensor, uniform: Tensor) -> Tensor:
    """The logarithm of a draw from q(pi)."""
    return kumaraswamy.log_sample(concentration_a(raw_a), concentration_b(raw_b), uniform.clamp(_PI_EDGE, 1.0 - _PI_EDGE))


def expected_pi(raw_a: Tensor, raw_b: Tensor) -> Tensor:
    """E[pi] under q."""
    return kumaraswamy.mean(concentration_a(raw_a), concentration_b(raw_b))


class BetaBernoulli(Gate):
    """z_k ~ Bernoulli(pi_k), pi_k ~ Beta(alpha/K, 1) a priori and Kumaraswamy(a_k, b_k) a posteriori (equations 7 to 15).

    In training pi is drawn once a batch and z, relaxed, once a sample. A unit is kept when E[pi] reaches the threshold.

    Args:
        num_units: how many units there are.
        alpha: the prior's alpha/K, given as one number.
        threshold: units with E[pi] below it are pruned.
        temperature: of the concrete relaxation.
        keep_init: where raw a starts: at +2 a gate passes 68 % of the signal, at -1, the paper's value for the LeNets, 24 %.
        raw_b_init: where raw b starts; the default is b = 1.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "bb"
    pruned_values: ClassVar[Mapping[str, float]] = {"raw_a": -20.0, "raw_b": RAW_ONE}
    tradeoff_meaning = "factor on the KL divergence (gamma)"
    noise_draws = 1

    def __init__(
        self,
        num_units: int,
        *,
        alpha: float = 1e-4,
        threshold: float = 1e-3,
        temperature: float = 0.1,
        keep_init: float = 2.0,
        raw_b_init: float = RAW_ONE,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_positive(alpha=alpha, temperature=temperature)
        require_probability(threshold=threshold)
        require_finite(keep_init=keep_init, raw_b_init=raw_b_init)
        self.alpha, self.threshold, self.temperature = alpha, threshold, temperature
        self.raw_a = nn.Parameter(torch.full((num_units,), float(keep_init)))
        self.raw_b = nn.Parameter(torch.full((num_units,), float(raw_b_init)))

    def kl(self) -> Tensor:
        return kumaraswamy.kl_to_beta(concentration_a(self.raw_a), concentration_b(self.raw_b), self.alpha).sum()

    @classmethod
    def divergences(cls, gates: Sequence[Gate]) -> list[Tensor]:
        """All at once where the priors agree."""
        alphas = {gate.alpha for gate in gates if isinstance(gate, BetaBernoulli)}
        if cls.kl is not BetaBernoulli.kl or len(alphas) != 1:
            return [gate.kl() for gate in gates]
        (alpha,) = alphas
        return sums_by_gate(gates, ("raw_a", "raw_b"), lambda a, b: kumaraswamy.kl_to_beta(concentration_a(a), concentration_b(b), alpha))

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return expected_pi(self.raw_a, self.raw_b)

    def keep(self, x: Tensor | None = None) -> Tensor:
        return self.keep_probability() >= self.threshold

    def sample_mask(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        noise = self.uniform(0, (1 + batch, self.num_units), self.raw_a, shared=1, samples=batch)
        for_batch, for_samples = noise.tensor_split([1])
        log_pi = sample_log_pi(self.raw_a, self.raw_b, for_batch[0])
        return binary_concrete.sample(logit_of_log(log_pi), for_samples, self.temperature)

    def mean_mask(self, x: Tensor) -> Tensor:
        probability = self.keep_probability()
        return torch.where(probability >= self.threshold, probability, 0.0)
