"""The normal distribution: the two divergences that the gates need."""

import math

import torch
from torch import Tensor


def kl_to_centred(mean: Tensor, std: Tensor, prior_std: float) -> Tensor:
    """KL[N(mean, std^2) || N(0, prior_std^2)], element by element."""
    return math.log(prior_std) - torch.log(std) + (std.square() + mean.square()) / (2.0 * prior_std**2) - 0.5


def kl_to_best_centred(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL of N(mean, var) times an activation from a centred normal of the best variance: log(1 + mean^2 / (var + 1e-8)) / 2.

    References:
        Dai et al., "Compressing Neural Networks using the Variational Information Bottleneck", 2018.
    """
    # Beyond exp(80) the ratio is nothing, and an overflow would make its gradient NaN.
    return 0.5 * torch.log1p(mean.square() / (torch.exp(log_variance.clamp(max=80.0)) + 1e-8))


def log_square(mean: Tensor) -> Tensor:
    """log(mean^2 + 1e-8)."""
    return torch.log(mean.square() + 1e-8)
