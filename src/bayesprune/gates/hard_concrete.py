"""L0: regularisation of the expected number of weights, through hard concrete gates.

References:
    Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization", 2018.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesprune.distributions import hard_concrete
from bayesprune.errors import InputError
from bayesprune.gates.contract import Gate, Tradeoff, Tunable, require_finite, require_positive

_PROBABILITY_EDGE = 1e-6
_WEIGHT_DECAY = 1e-4


class HardConcrete(Gate):
    """A hard concrete gate a unit, drawn once a batch, with a price for every weight that a unit brings along.

    A unit is kept while its gate at test time is not exactly zero. ``kl`` is the penalty in nats for the whole data set, so its parameters
    are the published ones times the number of data: P(z_k > 0) times the sum over the unit's weights of (precision/2 w^2 + price). A
    layer's bias belongs to the unit where units are outputs, and is decayed on its own where they are inputs.

    Args:
        num_units: how many units there are.
        price: of a weight, in nats: the published lambda times the number of data.
        precision: of the weights' Gaussian prior: the published weight decay, 1e-4, times the number of data.
        temperature: of the concrete relaxation.
        keep_init: around which log alpha starts: log((1 - d)/d) for a dropout rate d at the start. The published LeNets start at 0
            (d = 0.5), VGG at 1.386 (d = 0.2).
        channel_dim: see ``Gate``.
        groups: see ``Gate``.
    """

    method = "l0"
    pruned_values: ClassVar[Mapping[str, float]] = {"log_alpha": -20.0}
    tradeoff_meaning = "price of a weight in the loss (lambda); it already contains 1/N"
    default_tradeoff = 0.1 / 60_000
    noise_draws = 1
    gate_lr_factor = 1.0
    penalises_weights = True

    price, precision = Tunable(), Tunable()
    price_tensor: Tensor
    precision_tensor: Tensor

    def __init__(
        self,
        num_units: int,
        *,
        price: float = 0.1,
        precision: float = 6.0,
        temperature: float = 2.0 / 3.0,
        keep_init: float = math.log(4.0),
        channel_dim: int = 1,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(num_units, channel_dim=channel_dim, groups=groups)
        require_positive(temperature=temperature)
        require_finite(price=price, precision=precision, keep_init=keep_init)
        if price < 0 or precision < 0:
            raise InputError(f"price and precision must not be negative; they are {price} and {precision}")
        self.price, self.precision, self.temperature = price, precision, temperature
        self.log_alpha = nn.Parameter(keep_init + 0.01 * torch.randn(num_units))

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        return Tradeoff(hyperparameters={"price": tradeoff * n_data, "precision": _WEIGHT_DECAY * n_data})

    def kl(self) -> Tensor:
        probability = self.keep_probability().clamp(_PROBABILITY_EDGE, 1.0 - _PROBABILITY_EDGE)
        price, precision = self.price_tensor, self.precision_tensor
        penalty = probability.new_zeros(())
        for controlled in self.require_controlled():
            weight, bias, axis = controlled.weight, controlled.bias, controlled.unit_axis
            weights_per_channel = weight.numel() // max(weight.shape[axis], 1)
            per_channel = 0.5 * precision * _sum_squares(weight, axis) + price * weights_per_channel
            if bias is not None:
                if controlled.side == "outputs":
                    per_channel = per_channel + 0.5 * precision * bias.square() + price
                else:
                    penalty = penalty + 0.5 * precision * bias.square().sum()
            penalty = penalty + (probability * self.units.total(per_channel)).sum()
        return penalty

    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        return hard_concrete.probability_nonzero(self.log_alpha, self.temperature)

    def keep(self, x: Tensor | None = None) -> Tensor:
        return hard_concrete.median_gate(self.log_alpha) > 0.0

    def sample_mask(self, x: Tensor) -> Tensor:
        return hard_concrete.sample(self.log_alpha, self.uniform(0, (self.num_units,), self.log_alpha), self.temperature)

    def mean_mask(self, x: Tensor) -> Tensor:
        return hard_concrete.median_gate(self.log_alpha)


def _sum_squares(weight: Tensor, axis: int) -> Tensor:
    """The sum of squares over all dimensions but one."""
    return weight.square().sum(dim=[dim for dim in range(weight.ndim) if dim != axis])
