"""The log-normal distribution truncated in its logarithm: theta = exp(t), t ~ N(mu, sigma^2) restricted to [low, high].

The textbook formulas divide differences of normal probabilities that underflow together: at mu = 5, sigma = exp(-5), the mass of [-20, 0]
is exp(-275,000). Everything here works with the mass scaled by the density at its upper edge, through ``log_erfcx``, in float64. It needs
``low <= mu``, which the gates' parametrisation guarantees.

References:
    Neklyudov et al., "Structured Bayesian Pruning via Log-Normal Multiplicative Noise", 2017.
"""

import math

import torch
from torch import Tensor

from bayesprune.distributions.stable import log1mexp, log_erfcx, log_ndtr

LOG_LOW = -20.0
LOG_HIGH = 0.0
_ROOT_TWO = math.sqrt(2.0)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SERIES_FROM = 1e2


def _edges(mu: Tensor, sigma: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """The standardised edges of the interval, seen from the ``order``-fold tilted normal."""
    return (LOG_LOW - mu) / sigma - order * sigma, (LOG_HIGH - mu) / sigma - order * sigma


def _scaled_log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """log of (Phi(upper) - Phi(lower)) exp(r^2 / 2), with r = min(upper, 0) and lower <= 0."""
    tail = upper <= 0.0
    low_tail, up_tail = torch.where(tail, lower, -2.0), torch.where(tail, upper, -1.0)
    at_upper, at_lower = log_erfcx(torch.stack([up_tail, low_tail]) / -_ROOT_TWO).unbind()
    log_share_below = 0.5 * (up_tail - low_tail) * (up_tail + low_tail) + at_lower - at_upper
    in_tail = at_upper + log1mexp(log_share_below) - math.log(2.0)
    low_body, up_body = torch.where(tail, -1.0, lower), torch.where(tail, 1.0, upper)
    in_body = torch.log(0.5 * (torch.special.erf(up_body / _ROOT_TWO) - torch.special.erf(low_body / _ROOT_TWO)))
    return torch.where(tail, in_tail, in_body)


def log_moment(mu: Tensor, sigma: Tensor, order: float) -> Tensor:
    """log E[theta^order] = order mu + (order sigma)^2 / 2 + log of the ratio of the tilted mass to the mass, in float64."""
    mu, sigma = mu.double(), sigma.double()
    lower, upper = _edges(mu, sigma, 0.0)
    low_tilted, up_tilted = _edges(mu, sigma, order)
    mass_ratio = _scaled_log_mass(low_tilted, up_tilted) - _scaled_log_mass(lower, upper)
    # The quadratic exponents cancel analytically; each case below is their sum after cancellation.
    both_in_tail = torch.full_like(mu, order * LOG_HIGH)
    only_tilted_in_tail = order * LOG_HIGH - 0.5 * upper.clamp(min=0.0).square()
    neither = order * mu + 0.5 * (order * sigma).square()
    quadratic = torch.where(upper <= 0.0, both_in_tail, torch.where(up_tilted <= 0.0, only_tilted_in_tail, neither))
    return quadratic + mass_ratio


def mean(mu: Tensor, sigma: Tensor) -> Tensor:
    """E[theta]."""
    return torch.exp(log_moment(mu, sigma, 1.0)).to(mu.dtype)


def signal_to_noise(mu: Tensor, sigma: Tensor) -> Tensor:
    """E[theta] / sqrt(Var[theta]) = 1 / sqrt(E[theta^2] / E[theta]^2 - 1), large but finite for a point mass."""
    relative_variance = torch.expm1(log_moment(mu, sigma, 2.0) - 2.0 * log_moment(mu, sigma, 1.0))
    return relative_variance.clamp(min=1e-30).rsqrt().to(mu.dtype)


def kl_to_log_uniform(mu: Tensor, sigma: Tensor) -> Tensor:
    """KL from the log-uniform prior on the same interval, element by element.

    -log sigma - log Z - (al phi(al) - be phi(be)) / (2 Z) + log(high - low) - log(2 pi e) / 2, with al and be the standardised edges and Z
    the mass between them.
    """
    dtype = mu.dtype
    mu, sigma = mu.double(), sigma.double()
    lower, upper = _edges(mu, sigma, 0.0)
    scaled = _scaled_log_mass(lower, upper)
    anchor = upper.clamp(max=0.0)
    density_over_mass = torch.exp(-0.5 * (lower - anchor) * (lower + anchor) - _LOG_ROOT_TWO_PI - scaled)
    lower_term = -0.5 * lower * density_over_mass
    divergence = -torch.log(sigma) - scaled + lower_term + _upper_edge(upper, scaled)
    return (divergence + math.log(LOG_HIGH - LOG_LOW) - _LOG_ROOT_TWO_PI - 0.5).to(dtype)


def _upper_edge(upper: Tensor, scaled_log_mass: Tensor) -> Tensor:
    """min(be, 0)^2 / 2 + be phi(be) / (2 Z).

    Far in the tail both terms are of size be^2 and their sum is about -1/2: there the Mills ratio's asymptotic series takes over, where it
    is exact to rounding.
    """
    far = upper < -_SERIES_FROM
    near = torch.where(far, -1.0, upper)
    near_mass = torch.where(far, 0.0, scaled_log_mass)
    anchor = near.clamp(max=0.0)
    direct = 0.5 * anchor.square() + 0.5 * near * torch.exp(-0.5 * (near - anchor) * (near + anchor) - _LOG_ROOT_TWO_PI - near_mass)
    inverse_square = torch.where(far, upper, -_SERIES_FROM).square().reciprocal()
    series = -0.5 * (1.0 - inverse_square * (2.0 - inverse_square * (10.0 - 74.0 * inverse_square)))
    return torch.where(far, series, direct)


def log_sample(mu: Tensor, sigma: Tensor, uniform: Tensor) -> Tensor:
    """t = mu + sigma Phi^-1(Phi(al) + u (Phi(be) - Phi(al))), within [low, high].

    The inverse is taken of the logarithm of the probability, so that an interval far in the tail is sampled as exactly as any other.
    """
    dtype = mu.dtype
    mu, sigma, uniform = mu.double(), sigma.double(), uniform.double()
    lower, upper = _edges(mu, sigma, 0.0)
    log_lower, log_upper = log_ndtr(torch.stack([lower, upper])).unbind()
    log_p = log_upper + torch.log(uniform + (1.0 - uniform) * torch.exp(log_lower - log_upper))
    return (mu + sigma * _inverse_log_ndtr(log_p)).clamp(LOG_LOW, LOG_HIGH).to(dtype)


def sample(mu: Tensor, sigma: Tensor, uniform: Tensor) -> Tensor:
    """theta = exp(t)."""
    return torch.exp(log_sample(mu, sigma, uniform))


def _inverse_log_ndtr(log_p: Tensor) -> Tensor:
    """x with log Phi(x) = log_p.

    In the body through ``ndtri``; in the tail by Newton's iteration, of which two steps from a good start are exact to rounding. The last
    one carries the gradient dx/dlog_p = Phi(x) / phi(x), what comes before it is constant.
    """
    tail = log_p < -20.0
    body = torch.special.ndtri(torch.exp(torch.where(tail, -1.0, log_p)))
    target = torch.where(tail, log_p, -30.0)
    fixed = target.detach()
    return torch.where(tail, _newton_step(_newton_step(_far_out(fixed), fixed), target), body)


def _far_out(log_p: Tensor) -> Tensor:
    """The x of a log probability below -20 to 5e-5 of it, by Phi(x) ~ phi(x) |x| / (1 + x^2), solved for x^2 again and again."""
    square = -2.0 * log_p - torch.log(-4.0 * math.pi * log_p)
    for _ in range(2):
        square = -2.0 * log_p - torch.log(2.0 * math.pi * square) - 2.0 * torch.log1p(1.0 / square)
    return -torch.sqrt(square)


def _newton_step(x: Tensor, log_p: Tensor) -> Tensor:
    """The next x, for x in the lower tail."""
    scaled = log_erfcx(x / -_ROOT_TWO)
    mills_ratio = math.sqrt(math.pi / 2.0) * torch.exp(scaled)
    return x - (scaled - 0.5 * x.square() - math.log(2.0) - log_p) * mills_ratio
