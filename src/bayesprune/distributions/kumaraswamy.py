"""The Kumaraswamy distribution, q(pi; a, b) = a b pi^(a-1) (1 - pi^a)^(b-1) on (0, 1).

It resembles the beta distribution and has a closed inverse. Everything is stable in float32 for a and b from 1e-5 to 1e5.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 4.1.
    Nalisnick and Smyth, "Stick-Breaking Variational Autoencoders", 2017.
"""

import math

import torch
from torch import Tensor

from bayesprune.distributions.stable import log1mexp

EULER_GAMMA = 0.57721566490153286


def log_sample(a: Tensor, b: Tensor, uniform: Tensor) -> Tensor:
    """log pi with pi = (1 - u^(1/b))^(1/a), u uniform on (0, 1).

    In logarithms, because for small a nearly every draw of pi underflows while its logarithm is an ordinary number.
    """
    return log1mexp(torch.log(uniform) / b) / a


def sample(a: Tensor, b: Tensor, uniform: Tensor) -> Tensor:
    """pi = (1 - u^(1/b))^(1/a), u uniform on (0, 1)."""
    return torch.exp(log_sample(a, b, uniform))


def mean(a: Tensor, b: Tensor) -> Tensor:
    """E[pi] = b Gamma(1 + 1/a) Gamma(b) / Gamma(1 + 1/a + b).

    The three log-gammas cancel to far below their own size, so they are taken in float64.
    """
    order = 1.0 / a.double()
    shape = b.double()
    log_mean = torch.lgamma(1.0 + order) + torch.lgamma(1.0 + shape) - torch.lgamma(1.0 + order + shape)
    return torch.exp(log_mean.clamp(max=0.0)).to(a.dtype)


def kl_to_beta(a: Tensor, b: Tensor, concentration: float) -> Tensor:
    """KL[Kumaraswamy(a, b) || Beta(c, 1)], element by element.

    (a - c)/a (-gamma - Psi(b) - 1/b) + log(a b / c) - (b - 1)/b, with Psi(b) + 1/b taken as Psi(b + 1), which does not cancel for small b.
    The infinite series of the general case vanishes because the prior's second parameter is one.
    """
    wide_a, wide_b = a.double(), b.double()
    harmonic = EULER_GAMMA + torch.digamma(wide_b + 1.0)
    divergence = (concentration / wide_a - 1.0) * harmonic + torch.log(wide_a) + torch.log(wide_b) - math.log(concentration)
    return (divergence - 1.0 + 1.0 / wide_b).clamp(min=0.0).to(a.dtype)
