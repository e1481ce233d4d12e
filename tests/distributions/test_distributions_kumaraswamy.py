"""Kumaraswamy: against quadrature and Monte Carlo in float64, against fifty digits in float32 at the extremes."""

import itertools
import math

import mpmath as mp
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from bayesprune.distributions import kumaraswamy

MODERATE = list(itertools.product([0.05, 0.3133, 1.0, 2.127, 9.0], [0.05, 0.5, 1.0, 3.0, 40.0]))
CONCENTRATION = 1e-4
RAW_ONE = 0.5413
DIGITS = 50


def tensors(a, b, dtype=torch.float64):
    return torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)


def expectation(function, a, b):
    """E[f(log pi, s)] by quadrature over s = -log(1 - pi^a), which is exponential with rate b, as the distribution function says."""

    def integrand(v):  # s = e^v resolves both ends of the half line
        s = math.exp(v)
        return function(math.log(-math.expm1(-s)) / a, s) * b * math.exp(v - b * s)

    return integrate.quad(integrand, -45.0 - math.log(b), 4.0 - math.log(b), limit=500)[0]


@pytest.mark.parametrize(("a", "b"), MODERATE)
def test_mean_agrees_with_quadrature(a, b):
    assert kumaraswamy.mean(*tensors(a, b)).item() == pytest.approx(expectation(lambda log_pi, _: math.exp(log_pi), a, b), rel=1e-7)


@pytest.mark.parametrize(("a", "b"), MODERATE)
@pytest.mark.parametrize("concentration", [CONCENTRATION, 0.7])
def test_kl_agrees_with_quadrature(a, b, concentration):
    def log_ratio(log_pi, s):
        log_q = math.log(a * b) + (a - 1.0) * log_pi - (b - 1.0) * s
        log_prior = math.log(concentration) + (concentration - 1.0) * log_pi
        return log_q - log_prior

    expected = expectation(log_ratio, a, b)
    assert kumaraswamy.kl_to_beta(*tensors(a, b), concentration).item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_quadrature_of_the_density_itself():
    a, b, concentration = 1.7, 2.3, 0.4

    def density(x):
        return a * b * x ** (a - 1.0) * (1.0 - x**a) ** (b - 1.0)

    mean = integrate.quad(lambda x: x * density(x), 0.0, 1.0)[0]
    kl = integrate.quad(lambda x: density(x) * math.log(density(x) / (concentration * x ** (concentration - 1.0))), 0.0, 1.0)[0]
    assert kumaraswamy.mean(*tensors(a, b)).item() == pytest.approx(mean, rel=1e-9)
    assert kumaraswamy.kl_to_beta(*tensors(a, b), concentration).item() == pytest.approx(kl, rel=1e-9)


@pytest.mark.parametrize(("a", "b"), MODERATE)
def test_sample_inverts_the_distribution_function(a, b):
    u = torch.linspace(0.001, 0.999, 199, dtype=torch.float64)
    log_pi = kumaraswamy.log_sample(*tensors(a, b), u)
    survival = torch.exp(b * torch.log(-torch.expm1(a * log_pi)))  # P(pi > x) = (1 - x^a)^b
    torch.testing.assert_close(survival, u, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kumaraswamy.sample(*tensors(a, b), u), log_pi.exp())


@pytest.mark.parametrize(("a", "b"), [(0.3133, 1.0), (2.127, 1.0), (0.5, 3.0), (9.0, 0.5)])
def test_samples_reproduce_mean_and_kl(a, b):
    u = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_pi = kumaraswamy.log_sample(*tensors(a, b), u)
    log_q = math.log(a * b) + (a - 1.0) * log_pi + (b - 1.0) * torch.log(-torch.expm1(a * log_pi))
    log_ratio = log_q - math.log(CONCENTRATION) - (CONCENTRATION - 1.0) * log_pi
    for draws, expected in [
        (log_pi.exp(), kumaraswamy.mean(*tensors(a, b))),
        (log_ratio, kumaraswamy.kl_to_beta(*tensors(a, b), CONCENTRATION)),
    ]:
        assert abs(draws.mean() - expected) < 5 * draws.std() / math.sqrt(len(draws))


def test_published_values():
    one = torch.tensor(1.0)
    assert kumaraswamy.kl_to_beta(one, one, CONCENTRATION).item() == pytest.approx(8.2104, abs=5e-5)
    b = F.softplus(torch.tensor(RAW_ONE))
    assert b.item() == pytest.approx(1.0, abs=1e-4)
    for raw_a, mean, kl in [(-1.0, 0.2385, 7.05), (2.0, 0.680, 8.97)]:
        a = F.softplus(torch.tensor(raw_a))
        assert kumaraswamy.mean(a, b).item() == pytest.approx(mean, abs=10 ** -len(str(mean).split(".")[1]))
        assert kumaraswamy.kl_to_beta(a, b, CONCENTRATION).item() == pytest.approx(kl, abs=5e-3)


def exact_mean(a, b):
    order = 1 / a
    return mp.exp(mp.loggamma(1 + order) + mp.loggamma(1 + b) - mp.loggamma(1 + order + b))


def exact_kl(a, b):
    c = mp.mpf(CONCENTRATION)
    return (a - c) / a * (-mp.euler - mp.digamma(b) - 1 / b) + mp.log(a * b / c) - (b - 1) / b


def exact_log_sample(u):
    return lambda a, b: mp.log(-mp.expm1(mp.log(u) / b)) / a


def reference(function, a, b):
    """Value and both derivatives of an mpmath function at the very numbers that the tensors hold."""
    rows = []
    with mp.workdps(DIGITS):
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            x, y = mp.mpf(x), mp.mpf(y)
            step_x, step_y = x * mp.mpf(10) ** -15, y * mp.mpf(10) ** -15
            slopes = mp.diff(lambda v, y=y: function(v, y), x, h=step_x), mp.diff(lambda v, x=x: function(x, v), y, h=step_y)
            rows.append([float(function(x, y)), *map(float, slopes)])
    return torch.tensor(rows, dtype=torch.float64).unbind(1)


def extreme_grid():
    """Both parameters from 1e-5 to 1e5, in float32; an even number of points, which passes by the prior, where the divergence is zero."""
    points = torch.logspace(-5.0, 5.0, 14)
    a, b = torch.meshgrid(points, points, indexing="ij")
    return a.flatten().requires_grad_(), b.flatten().requires_grad_()


@pytest.mark.parametrize(
    ("function", "exact", "rtol"),
    [
        (kumaraswamy.mean, exact_mean, 1e-6),
        (lambda a, b: kumaraswamy.kl_to_beta(a, b, CONCENTRATION), exact_kl, 1e-6),
        (lambda a, b: kumaraswamy.log_sample(a, b, torch.tensor(2.0**-23)), exact_log_sample(2.0**-23), 2e-5),
        (lambda a, b: kumaraswamy.log_sample(a, b, torch.tensor(0.5)), exact_log_sample(0.5), 2e-5),
        (lambda a, b: kumaraswamy.log_sample(a, b, torch.tensor(1 - 2.0**-23)), exact_log_sample(1 - 2.0**-23), 2e-5),
    ],
    ids=["mean", "kl", "log_sample-low", "log_sample-middle", "log_sample-high"],
)
def test_float32_is_right_at_the_extremes_and_so_are_its_gradients(function, exact, rtol):
    a, b = extreme_grid()
    found = function(a, b)
    assert found.dtype == torch.float32
    slopes = torch.autograd.grad(found.sum(), (a, b))
    smallest = torch.finfo(torch.float32).tiny
    for name, ours, theirs in zip(("value", "d/da", "d/db"), (found, *slopes), reference(exact, a, b), strict=True):
        assert ours.isfinite().all(), name
        close = torch.isclose(ours.double(), theirs, rtol=rtol if name == "value" else 1e-4, atol=smallest)
        assert close.all(), (
            f"{name} at a = {a[~close].tolist()}, b = {b[~close].tolist()}: {ours[~close].tolist()} not {theirs[~close].tolist()}"
        )


raw = st.floats(-10.0, 10.0, width=32)


@settings(deadline=None)
@given(log_a=raw, log_b=raw, log_c=st.floats(-10.0, 2.0))
def test_kl_is_never_negative_and_the_mean_is_a_probability(log_a, log_b, log_c):
    a, b = tensors(math.exp(log_a), math.exp(log_b), torch.float32)
    assert kumaraswamy.kl_to_beta(a, b, math.exp(log_c)).item() >= 0.0
    assert 0.0 <= kumaraswamy.mean(a, b).item() <= 1.0


@pytest.mark.parametrize("concentration", [1e-4, 0.3, 1.0])
def test_kl_of_the_prior_from_itself_is_zero_and_a_minimum(concentration):
    a = torch.tensor(concentration, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    kl = kumaraswamy.kl_to_beta(a, b, concentration)
    assert kl.item() == pytest.approx(0.0, abs=1e-12)
    assert kumaraswamy.kl_to_beta(a * 1.1, b, concentration).item() > 1e-4
    assert kumaraswamy.kl_to_beta(a, b * 1.1, concentration).item() > 1e-4
    assert kumaraswamy.kl_to_beta(a / 1.1, b / 1.1, concentration).item() > 1e-4


@settings(deadline=None)
@given(a=st.floats(1e-3, 1e3), b=st.floats(1e-3, 1e3))
def test_the_mean_rises_with_a_and_falls_with_b(a, b):
    here, more_a, more_b = (kumaraswamy.mean(*tensors(*pair)).item() for pair in [(a, b), (a * 1.5, b), (a, b * 1.5)])
    assert more_b <= here <= more_a
