"""The hard concrete distribution: a binary concrete variable stretched beyond [0, 1] and clipped, so that it is exactly 0 or 1 at times.

References:
    Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization", 2018.
"""

import math

import torch
from torch import Tensor

from bayesprune.distributions import binary_concrete

STRETCH = (-0.1, 1.1)


def _stretch(s: Tensor) -> Tensor:
    low, high = STRETCH
    return (s * (high - low) + low).clamp(0.0, 1.0)


def sample(log_alpha: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """z = clip(s (1.1 + 0.1) - 0.1, 0, 1) with s binary concrete of logit ``log_alpha``."""
    return _stretch(binary_concrete.sample(log_alpha, uniform, temperature))


def probability_nonzero(log_alpha: Tensor, temperature: float) -> Tensor:
    """P(z > 0) = sigmoid(log_alpha - temperature log(0.1 / 1.1))."""
    low, high = STRETCH
    return torch.sigmoid(log_alpha - temperature * math.log(-low / high))


def median_gate(log_alpha: Tensor) -> Tensor:
    """clip(sigmoid(log_alpha) (1.1 + 0.1) - 0.1, 0, 1), the value that stands for z at test time."""
    return _stretch(torch.sigmoid(log_alpha))
