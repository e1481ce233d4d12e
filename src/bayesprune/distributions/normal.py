"""The normal distribution: the two divergences that the gates need."""

import math

import torch
from torch import Tensor


def kl_to_centred(mean: Tensor, std: Tensor, prior_std: float) -> Tensor:
    """KL[N(mean, std^2) || N(0, prior_std^2)], element by element."""
    return math.log(prior_std) - torch.log(std) + (std.square() + mean.square()) / (2.0 * prior_std**2) - 0.5


def kl_to_best_centred(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL of N(mean, var) times an activation from a centred normal of the best variance: log(1 + mean^2 / var) / 2.

    References:
        Dai et al., "Compressing Neural Networks using the Variational Information Bottleneck", 2018.
    """
    # log(1 + mean^2/var) = softplus(log mean^2 - log var); the floor keeps the logarithm and its gradient finite at mean zero.
    return 0.5 * torch.nn.functional.softplus(log_square(mean) - log_variance)


def log_square(mean: Tensor) -> Tensor:
    """log(mean^2 + 1e-8)."""
    return torch.log(mean.square() + 1e-8)
