"""The truncated log-normal against integration, over the whole domain of its parameters.

The reference integrates in the distance from the mode of the truncated density, with the density scaled to one there, so that nothing in it
underflows or cancels however far the interval lies in the tail. It is written in torch, so that its gradients are a reference too.
"""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.distributions import truncated_log_normal as tln

LOW, HIGH = -20.0, 0.0
MUS = [-20.0, -19.9, -13.0, -10.0, -3.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 2.0, 5.0]
LOG_SIGMAS = [-20.0, -15.0, -10.0, -7.0, -5.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0]
DOMAIN = list(itertools.product(MUS, LOG_SIGMAS))
PANELS = 240


def domain(dtype=torch.float64):
    mu, log_sigma = torch.tensor(DOMAIN, dtype=dtype).unbind(1)
    return mu.clone().requires_grad_(), log_sigma.clone().requires_grad_()


class Reference:
    """Expectations under the truncated density by Gauss-Legendre quadrature on panels around its mode."""

    def __init__(self, mu, log_sigma):
        self.sigma = log_sigma.exp()
        fixed_mu, fixed_sigma = mu.detach(), self.sigma.detach()
        self.mode = fixed_mu.clamp(LOW, HIGH)
        fall = torch.where(fixed_mu > HIGH, fixed_sigma.square() / fixed_mu, fixed_sigma).minimum(fixed_sigma)
        reach = torch.where(fixed_sigma > 0.2, HIGH - LOW, 45.0 * fall)
        start, end = torch.maximum(LOW - self.mode, -reach), torch.minimum(HIGH - self.mode, reach)
        nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
        edges = start[:, None] + (end - start)[:, None] * torch.linspace(0.0, 1.0, PANELS + 1, dtype=torch.float64)
        middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
        self.distance = (middle[..., None] + half[..., None] * nodes).flatten(1)
        self.exponent = -(self.distance.square() + 2 * self.distance * (self.mode - mu)[:, None]) / (2 * self.sigma.square()[:, None])
        density = (half[..., None] * weights).flatten(1) * torch.exp(self.exponent)
        self.mass = density.sum(1)
        self.probability = density / self.mass[:, None]
        self.above = torch.expm1(self.distance)  # theta / exp(mode) - 1

    def expect(self, values):
        return (self.probability * values).sum(1)

    def mean(self):
        return self.mode.exp() * (1 + self.expect(self.above))

    def second_moment(self):
        return (2 * self.mode).exp() * self.expect((1 + self.above).square())

    def signal_to_noise(self):
        relative = self.above - self.expect(self.above)[:, None]
        return (1 + self.expect(self.above)) / self.expect(relative.square()).sqrt()

    def kl(self):
        return self.expect(self.exponent) - self.mass.log() + math.log(HIGH - LOW)


@pytest.fixture(scope="module")
def reference():
    mu, log_sigma = domain()
    return mu, log_sigma, Reference(mu, log_sigma)


def where(close):
    return [place for place, good in zip(DOMAIN, close.tolist(), strict=True) if not good]


def assert_agrees(found, expected, rtol, atol=0.0):
    assert found.isfinite().all()
    close = torch.isclose(found.double(), expected.double(), rtol=rtol, atol=atol)
    assert close.all(), f"at (mu, log sigma) {where(close)}: {found[~close].tolist()} instead of {expected[~close].tolist()}"


@pytest.mark.parametrize(("dtype", "rtol", "slope_rtol"), [(torch.float64, 1e-8, 2e-4), (torch.float32, 1e-5, 1e-3)])
@pytest.mark.parametrize("name", ["kl", "mean"])
def test_values_and_gradients_over_the_domain(reference, name, dtype, rtol, slope_rtol):
    wide_mu, wide_log_sigma, quadrature = reference
    expected = getattr(quadrature, name)()
    expected_slopes = torch.autograd.grad(expected.sum(), (wide_mu, wide_log_sigma), retain_graph=True)
    mu, log_sigma = domain(dtype)
    found = {"kl": tln.kl_to_log_uniform, "mean": tln.mean}[name](mu, log_sigma.exp())
    assert found.dtype == dtype
    slopes = torch.autograd.grad(found.sum(), (mu, log_sigma))
    assert_agrees(found, expected.detach(), rtol)
    for slope, expected_slope in zip(slopes, expected_slopes, strict=True):
        assert_agrees(slope, expected_slope, slope_rtol, atol=1e-6)


def test_moments_over_the_domain(reference):
    mu, log_sigma, quadrature = reference
    with torch.no_grad():
        sigma = log_sigma.exp()
        assert_agrees(tln.log_moment(mu, sigma, 1.0).exp(), quadrature.mean(), 1e-8)
        assert_agrees(tln.log_moment(mu, sigma, 2.0).exp(), quadrature.second_moment(), 1e-8)


def test_signal_to_noise_over_the_domain(reference):
    mu, log_sigma, quadrature = reference
    with torch.no_grad():
        expected = quadrature.signal_to_noise()
        for dtype in (torch.float32, torch.float64):
            found = tln.signal_to_noise(mu.to(dtype), log_sigma.to(dtype).exp())
            assert found.isfinite().all()
            sure = expected < 1e4  # beyond, the variance is lost in the rounding of the moments, and the ratio is merely large
            assert_agrees(torch.where(sure, found, expected.to(dtype)), expected, 1e-5)
            assert (found[~sure] > 1e4).all()


def test_published_values():
    """7.27 nats at mu = 0 and log sigma = -5, where every gate starts."""
    start = torch.tensor(0.0), torch.tensor(-5.0).exp()
    assert tln.kl_to_log_uniform(*start).item() == pytest.approx(7.27, abs=5e-3)
    assert tln.mean(*start).item() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("corner", list(itertools.product([-20.0, 5.0], [-20.0, -5.0, 5.0])))
def test_corners_are_finite_in_float32_with_finite_gradients(corner):
    """At mu = 5 and log sigma = -5 the published code divides zero by zero."""
    mu, log_sigma = (torch.tensor(value, requires_grad=True) for value in corner)
    for function in (tln.kl_to_log_uniform, tln.mean, tln.signal_to_noise, lambda m, s: tln.sample(m, s, torch.tensor(0.3))):
        value = function(mu, log_sigma.exp())
        slopes = torch.autograd.grad(value, (mu, log_sigma))
        assert value.isfinite()
        assert all(slope.isfinite() for slope in slopes), function


def test_kl_is_never_negative(reference):
    assert (reference[2].kl() > 0).all()
    dense = torch.cartesian_prod(torch.linspace(-20.0, 5.0, 101), torch.linspace(-20.0, 5.0, 101))
    assert (tln.kl_to_log_uniform(dense[:, 0], dense[:, 1].exp()) >= 0).all()


@pytest.mark.parametrize(("mu", "log_sigma"), [place for place in DOMAIN if place[1] > -12.0])
def test_sample_is_the_inverse_of_the_distribution_function(mu, log_sigma):
    """P(t < sample(u)) = u, the probability being taken with sixty digits."""
    u = torch.tensor([2.0**-24, 0.01, 0.3, 0.5, 0.9, 1 - 2.0**-24], dtype=torch.float64)
    sigma = torch.tensor(log_sigma, dtype=torch.float64).exp()
    t = tln.log_sample(torch.tensor(mu, dtype=torch.float64), sigma, u)
    width = min(sigma.item(), 20.0, sigma.item() ** 2 / mu if mu > 0 else math.inf)
    with mp.workdps(60):
        low, high, *points = ((mp.mpf(x) - mp.mpf(mu)) / mp.mpf(sigma.item()) for x in (LOW, HIGH, *t.tolist()))
        mass = mp.erfc(-high / mp.sqrt(2)) - mp.erfc(-low / mp.sqrt(2))
        found = [float((mp.erfc(-x / mp.sqrt(2)) - mp.erfc(-low / mp.sqrt(2))) / mass) for x in points]
    assert found == pytest.approx(u.tolist(), rel=1e-7, abs=1e-9 + 2e-14 / width)


def test_quantiles_reproduce_the_mean_over_the_domain(reference):
    """The integral of the quantile function over u, with u = sigmoid(v) to resolve both ends."""
    mu, log_sigma, quadrature = reference
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
    centres = torch.arange(-35.5, 36.0, dtype=torch.float64)
    u = torch.sigmoid((centres[:, None] + 0.5 * nodes).flatten())
    weight = (0.5 * weights).repeat(len(centres)) * u * (1 - u)
    with torch.no_grad():
        theta = tln.sample(mu[:, None], log_sigma.exp()[:, None], u)
        assert_agrees(theta @ weight, quadrature.mean(), 1e-6)


@settings(deadline=None)
@given(
    mu=st.floats(-20.0, 5.0, width=32),
    log_sigma=st.floats(-20.0, 5.0, width=32),
    u=st.floats(2.0**-24, 1 - 2.0**-24, width=32),
)
def test_samples_lie_in_the_interval_with_finite_gradients(mu, log_sigma, u):
    mu, log_sigma = torch.tensor(mu, requires_grad=True), torch.tensor(log_sigma, requires_grad=True)
    theta = tln.sample(mu, log_sigma.exp(), torch.tensor(u))
    slopes = torch.autograd.grad(theta, (mu, log_sigma))
    assert math.exp(-20.0) * (1 - 1e-6) <= theta.item() <= 1.0
    assert all(slope.isfinite() for slope in slopes)
