"""SBP: structured Bayesian pruning with truncated log-normal multiplicative noise.

References:
    Neklyudov et al., "Structured Bayesian Pruning via Log-Normal Multiplicative Noise", 2017.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesprune.distributions import truncated_log_normal
from bayesprune.gates.contract import Gate, require_finite, require_positive, sums_by_gate

_RAW_LOW, _RAW_HIGH = -20.0, 5.0


def mu_and_sigma(mu: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
    """The parameters of the normal, from raw values that are held within [-20, 5]."""
    return mu.clamp(_RAW_LOW, _RAW_HIGH), torch.exp(log_sigma.clamp(_RAW_LOW, _RAW_HIGH))


class StructuredBayesian(Gate):
    """theta_k = exp(t_k), t_k normal and truncated to [-20, 0], under a log-uniform prior; drawn once a batch.

    A unit is kept when its signal-to-noise ratio exceeds the threshold. As multiplicative noise of relative variance 1/SNR^2 acts like
    Bernoulli dropout of rate p = (1/SNR^2) / (1 + 1/SNR^2) (Srivastava et al., 2014), ``keep_probability`` is SNR^2 / (1 + SNR^2).

    The published experiments train it with the network's batch norms in evaluation mode. The trainer and ``fit`` do that; in a loop of your
    own, call ``eval()`` on them after ``train()``.

    Args:
        num_units: how many units there are.
        threshold: on the signal-to-noise ratio.
        keep_init: where mu starts; at 0 a gate passes the signal whole.
        log_sigma_init: where log sigma starts.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "sbp"
    pruned_values: ClassVar[Mapping[str, float]] = {"mu": _RAW_LOW, "log_sigma": _RAW_HIGH}
    tradeoff_meaning = "factor on the KL divergence (gamma)"
    noise_draws = 1
    freezes_batch_norm = True

    def __init__(
        self,
        num_units: int,
        *,
        threshold: float = 1.0,
        keep_init: float = 0.0,
        log_sigma_init: float = -5.0,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_positive(threshold=threshold)
        require_finite(keep_init=keep_init, log_sigma_init=log_sigma_init)
        self.threshold = threshold
        self.mu = nn.Parameter(torch.full((num_units,), float(keep_init)))
        self.log_sigma = nn.Parameter(torch.full((num_units,), float(log_sigma_init)))

    def _held(self) -> tuple[Tensor, Tensor]:
        return mu_and_sigma(self.mu, self.log_sigma)

    def kl(self) -> Tensor:
        return truncated_log_normal.kl_to_log_uniform(*self._held()).sum()

    @classmethod
    def divergences(cls, gates: Sequence[Gate]) -> list[Tensor]:
        """All at once."""
        if cls.kl is not StructuredBayesian.kl:
            return [gate.kl() for gate in gates]
        return sums_by_gate(gates, ("mu", "log_sigma"), lambda *raw: truncated_log_normal.kl_to_log_uniform(*mu_and_sigma(*raw)))

    def signal_to_noise(self) -> Tensor:
        return truncated_log_normal.signal_to_noise(*self._held())

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return 1.0 / (1.0 + self.signal_to_noise().pow(-2.0))

    def keep(self, x: Tensor | None = None) -> Tensor:
        return self.signal_to_noise() > self.threshold

    def sample_mask(self, x: Tensor) -> Tensor:
        return truncated_log_normal.sample(*self._held(), self.uniform(0, (self.num_units,), self.mu))

    def mean_mask(self, x: Tensor) -> Tensor:
        return torch.where(self.keep(), truncated_log_normal.mean(*self._held()), 0.0)
