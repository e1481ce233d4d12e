"""CD: concrete dropout, one learned dropout rate a layer. It regularises and never prunes.

References:
    Gal, Hron and Kendall, "Concrete Dropout", 2017.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.distributions import binary_concrete
from bayesprune.errors import InputError
from bayesprune.gates.contract import Gate, Tradeoff, Tunable, require_positive

_RAW_EDGE = 20.0
_VECTOR_TEMPERATURE, _MAP_TEMPERATURE = 0.1, 2.0 / 3.0


class ConcreteDropout(Gate):
    """Every unit is dropped with the layer's rate p, relaxed and drawn for each sample, and the rest scaled by 1 / (1 - p).

    ``kl`` is the penalty in nats for the whole data set: length_scale^2 ||W||^2 / (1 - p) - entropy_weight K H(p), for the layer that the
    gate controls. At test time nothing is dropped; all units are kept.

    The published method drops the inputs of the layer whose weights it penalises. Here that is so where a gate is on a layer's input; a
    gate on a convolution's outputs, as in the paper's networks, penalises that convolution, with K its number of outputs.

    Args:
        num_units: how many units there are.
        length_scale: of the weights' prior.
        entropy_weight: on the entropy of the rate; 1 for cross-entropy, 2 for a squared loss.
        temperature: of the concrete relaxation; by default 0.1 for vectors and 2/3 for feature maps, as published.
        drop_init: the dropout rate at the start.
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "cd"
    tradeoff_meaning = "none: the method has no trade-off"
    noise_draws = 1
    penalises_weights = True

    length_scale, entropy_weight = Tunable(), Tunable()
    length_scale_tensor: Tensor
    entropy_weight_tensor: Tensor

    def __init__(
        self,
        num_units: int,
        *,
        length_scale: float = 1e-2,
        entropy_weight: float = 1.0,
        temperature: float | None = None,
        drop_init: float = 0.1,
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_positive(length_scale=length_scale, entropy_weight=entropy_weight, temperature=1.0 if temperature is None else temperature)
        if not 0.0 < drop_init < 1.0:
            raise InputError(f"drop_init is a probability between 0 and 1, not {drop_init}")
        self.length_scale, self.entropy_weight, self.temperature = length_scale, entropy_weight, temperature
        self.raw_drop = nn.Parameter(torch.full((1,), math.log(drop_init / (1.0 - drop_init))))

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        return Tradeoff()

    def _held(self) -> Tensor:
        """The logit of the rate, kept where 1 / (1 - p) is a finite number."""
        return self.raw_drop.clamp(-_RAW_EDGE, _RAW_EDGE)

    def kl(self) -> Tensor:
        raw = self._held()
        log_drop, log_keep = F.logsigmoid(raw), F.logsigmoid(-raw)
        negative_entropy = torch.exp(log_drop) * log_drop + torch.exp(log_keep) * log_keep
        penalty = self.entropy_weight_tensor * self.num_units * negative_entropy
        for controlled in self.require_controlled():
            penalty = penalty + self.length_scale_tensor.square() * controlled.weight.square().sum() * torch.exp(-log_keep)
        return penalty.sum()

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return torch.sigmoid(-self.raw_drop).expand(self.num_units)

    def keep(self, x: Tensor | None = None) -> Tensor:
        return torch.ones(self.num_units, dtype=torch.bool, device=self.raw_drop.device)

    def sample_mask(self, x: Tensor) -> Tensor:
        temperature = self.temperature or (_VECTOR_TEMPERATURE if x.ndim == 2 else _MAP_TEMPERATURE)
        uniform = self.uniform(0, (x.shape[0], self.num_units), self.raw_drop, samples=x.shape[0])
        raw = self._held()
        return binary_concrete.sample(-raw, uniform, temperature) * torch.exp(-F.logsigmoid(-raw))

    def mean_mask(self, x: Tensor) -> Tensor:
        return torch.ones(self.num_units, dtype=self.raw_drop.dtype, device=self.raw_drop.device)
