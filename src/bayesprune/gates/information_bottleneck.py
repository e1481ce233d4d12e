"""VIB: the variational information bottleneck between layers.

References:
    Dai et al., "Compressing Neural Networks using the Variational Information Bottleneck", 2018.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesprune.distributions import normal
from bayesprune.gates.contract import Gate, Tradeoff, require_finite

_INIT_SPREAD = 0.01


class InformationBottleneck(Gate):
    """z_k = mu_k + sigma_k epsilon, drawn for each sample; kept while log alpha_k = log(sigma_k^2 / mu_k^2) is below the threshold.

    As Gaussian noise of relative variance alpha acts like Bernoulli dropout of rate alpha / (1 + alpha) (Srivastava et al., 2014),
    ``keep_probability`` is 1 / (1 + alpha).

    Args:
        num_units: how many units there are.
        threshold: on log alpha.
        keep_init: around which mu starts; at 1 a gate passes the signal whole.
        log_variance_init: around which log sigma^2 starts.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "vib"
    pruned_values: ClassVar[Mapping[str, float]] = {"mu": 0.0, "log_variance": 0.0}
    signed = True
    tradeoff_meaning = "weight of the divergence in the loss, absolute: not divided by the number of data"
    default_tradeoff = 1e-5
    noise_draws = 1

    def __init__(
        self,
        num_units: int,
        *,
        threshold: float = 0.0,
        keep_init: float = 1.0,
        log_variance_init: float = -9.0,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_finite(threshold=threshold, keep_init=keep_init, log_variance_init=log_variance_init)
        self.threshold = threshold
        self.mu = nn.Parameter(keep_init + _INIT_SPREAD * torch.randn(num_units))
        self.log_variance = nn.Parameter(log_variance_init + _INIT_SPREAD * torch.randn(num_units))

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        return Tradeoff(kl_scale=tradeoff * n_data)

    def log_alpha(self) -> Tensor:
        return self.log_variance - normal.log_square(self.mu)

    def kl(self) -> Tensor:
        return normal.kl_to_best_centred(self.mu, self.log_variance).sum()

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return torch.sigmoid(-self.log_alpha())

    def keep(self, x: Tensor | None = None) -> Tensor:
        return self.log_alpha() < self.threshold

    def sample_mask(self, x: Tensor) -> Tensor:
        noise = self.normal(0, (x.shape[0], self.num_units), self.mu, samples=x.shape[0])
        return self.mu + torch.exp(0.5 * self.log_variance) * noise

    def mean_mask(self, x: Tensor) -> Tensor:
        return torch.where(self.keep(), self.mu, 0.0)
