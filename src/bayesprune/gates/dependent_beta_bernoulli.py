"""DBB: beta-Bernoulli dropout whose probabilities depend on the input.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 4.2.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.distributions import binary_concrete, normal
from bayesprune.distributions.stable import UNIT_EPS, logit_of_log
from bayesprune.errors import InputError
from bayesprune.gates.beta_bernoulli import RAW_ONE, BetaBernoulli, expected_pi, sample_log_pi
from bayesprune.gates.contract import Gate, Tradeoff, require_finite, require_positive, require_probability

PHI_EDGE = 1e-10
VARIANCE_EDGE = 1e-5
"""Added to the variance of activations before they are divided by its root."""


class DependentBetaBernoulli(Gate):
    """z_k ~ Bernoulli(pi_k phi_k(x)), phi_k(x) = clamp(scale_k (x_k - mu_k) / sigma_k + beta_k) (equation 20).

    x_k is the unit's own activation, averaged over positions and cut off from the gradient; mu and sigma are batch statistics in training
    and running ones in evaluation, and for a batch of a single sample, which has no spread of its own. beta has the prior N(0, rho) and
    the posterior N(shift, softplus(raw_shift_std)^2). q(pi) comes from a trained BB gate and is fixed: it lives in buffers, and its
    divergence, a constant, is not part of ``kl``. Because phi is at most one, the units used for an input are always among those that BB
    kept.

    The paper's mask is one Bernoulli(pi phi); its tables came from the product of two relaxed draws, of pi and of phi. ``relaxation``
    offers both; ``"product"``, the default, is what reproduces the tables.

    Args:
        num_units: how many units there are.
        threshold: units with E[z | x] at or below it are pruned for that input, units with E[pi] below it for every input.
        temperature: of the concrete relaxation.
        prior_std: the prior's standard deviation of beta. The paper's rho, sqrt(5), is a standard deviation in its experiments.
        relaxation: ``"product"`` or ``"single"``.
        keep_init: where raw a stands if no BB gate is given.
        shift_init: where the mean of beta starts.
        momentum: of the running statistics.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "dbb"
    pruned_values: ClassVar[Mapping[str, float]] = {"raw_a": -20.0, "raw_b": RAW_ONE}
    depends_on_input = True
    tradeoff_meaning = "factor on the KL divergence (gamma) of the BB stage that it starts from"
    noise_draws = 1

    raw_a: Tensor
    raw_b: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_units: int,
        *,
        threshold: float = 1e-3,
        temperature: float = 0.1,
        prior_std: float = math.sqrt(5.0),
        relaxation: Literal["product", "single"] = "product",
        keep_init: float = 2.0,
        shift_init: float = 1.0,
        momentum: float = 0.1,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_probability(threshold=threshold)
        require_positive(temperature=temperature, prior_std=prior_std, momentum=momentum)
        require_finite(keep_init=keep_init, shift_init=shift_init)
        if relaxation not in ("product", "single"):
            raise InputError(f"relaxation is 'product' or 'single', not '{relaxation}'")
        self.threshold, self.temperature, self.prior_std = threshold, temperature, prior_std
        self.relaxation, self.momentum = relaxation, momentum
        self.register_buffer("raw_a", torch.full((num_units,), float(keep_init)))
        self.register_buffer("raw_b", torch.full((num_units,), RAW_ONE))
        self.register_buffer("running_mean", torch.zeros(num_units))
        self.register_buffer("running_var", torch.ones(num_units))
        self.scale = nn.Parameter(torch.ones(num_units))
        self.shift = nn.Parameter(torch.full((num_units,), float(shift_init)))
        self.raw_shift_std = nn.Parameter(torch.full((num_units,), RAW_ONE))

    @classmethod
    def from_beta_bernoulli(cls, gate: BetaBernoulli, **hyperparameters: float) -> "DependentBetaBernoulli":
        """The second stage of a trained BB gate, with its q(pi), threshold, temperature and place."""
        settings = {"threshold": gate.threshold, "temperature": gate.temperature} | hyperparameters
        units = gate.units
        dependent = cls(gate.num_units, channel_dim=units.channel_dim, groups=units.groups, **settings)  # type: ignore[arg-type]
        dependent.to(gate.raw_a.device, gate.raw_a.dtype)
        dependent.raw_a.copy_(gate.raw_a.detach())
        dependent.raw_b.copy_(gate.raw_b.detach())
        dependent.controlled, dependent.position = gate.controlled, gate.position
        dependent.noise_columns, dependent.noise_width = gate.noise_columns, gate.noise_width
        dependent.train(gate.training)
        return dependent

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        """The trade-off acted in the BB stage; the divergence of beta is not scaled."""
        return Tradeoff(kl_scale=1.0)

    def kl(self) -> Tensor:
        std = F.softplus(self.raw_shift_std.double())  # In single precision small deviations would be none.
        return normal.kl_to_centred(self.shift.double(), std, self.prior_std).sum().to(self.shift.dtype)

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        pi = expected_pi(self.raw_a, self.raw_b)
        return pi if x is None else torch.where(pi >= self.threshold, pi, 0.0) * self._phi(self._standardised(x, update=False))

    def keep(self, x: Tensor | None = None) -> Tensor:
        probability = self.keep_probability(x)
        return probability >= self.threshold if x is None else probability > self.threshold

    def sample_mask(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        noise = self.uniform(0, (2 + 2 * batch, self.num_units), self.raw_a, shared=2, samples=batch)
        for_batch, for_pi, for_phi = noise.tensor_split([2, 2 + batch])
        log_pi = sample_log_pi(self.raw_a, self.raw_b, for_batch[0])
        deviation = F.softplus(self.raw_shift_std) * torch.special.ndtri(for_batch[1])
        phi = self._phi(self._standardised(x, update=True) + deviation)
        if self.relaxation == "single":
            log_p = log_pi + torch.log(phi)
            return binary_concrete.sample(logit_of_log(log_p), for_pi, self.temperature)
        from_pi = binary_concrete.sample(logit_of_log(log_pi), for_pi, self.temperature)
        from_phi = binary_concrete.sample(torch.logit(phi, eps=UNIT_EPS), for_phi, self.temperature)
        return from_pi * from_phi

    def mean_mask(self, x: Tensor) -> Tensor:
        probability = self.keep_probability(x)
        return torch.where(probability > self.threshold, probability, 0.0)

    def _phi(self, before_clamp: Tensor) -> Tensor:
        return before_clamp.clamp(PHI_EDGE, 1.0 - PHI_EDGE)

    def _standardised(self, x: Tensor, update: bool) -> Tensor:
        """scale_k (x_k - mu_k) / sigma_k + shift_k; if asked, and in training, the running statistics are updated."""
        dtype = self.running_mean.dtype  # Parameters may be of another type for one call.
        activation = self.units.mean(x.detach().to(dtype))
        if self.num_units == 0:
            return activation
        batch = x.shape[0] if self.share is None else self.share.total
        use_batch = self.training and batch > 1
        mean, var = (None, None) if use_batch and not update else (self.running_mean, self.running_var)
        return F.batch_norm(activation, mean, var, self.scale.to(dtype), self.shift.to(dtype), use_batch, self.momentum, VARIANCE_EDGE)
