"""The elementary functions against mpmath, values and gradients, far into both ends."""

import math

import mpmath as mp
import pytest
import torch

from bayesprune.distributions import stable

DIGITS = 50


def check(function, reference, points, dtype, rtol):
    """Values and first derivatives of ``function`` at the points agree with those of the mpmath function."""
    x = torch.tensor(points, dtype=dtype, requires_grad=True)
    y = function(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    with mp.workdps(DIGITS):
        exact = [mp.mpf(value) for value in x.tolist()]
        values = [float(reference(value)) for value in exact]
        slopes = [float(mp.diff(reference, value, h=abs(value) * mp.mpf(10) ** -15)) for value in exact]
    tiny = torch.finfo(dtype).tiny
    torch.testing.assert_close(y.detach(), torch.tensor(values, dtype=dtype), rtol=rtol, atol=tiny)
    torch.testing.assert_close(slope, torch.tensor(slopes, dtype=dtype), rtol=rtol, atol=tiny)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_log1mexp(dtype, rtol):
    points = [-1e-30, -1e-10, -1e-4, -0.1, -0.69, -math.log(2.0), -0.7, -2.0, -15.0, -60.0]
    check(stable.log1mexp, lambda x: mp.log(-mp.expm1(x)), points, dtype, rtol * 20)


@pytest.mark.parametrize("x", [-1e4, -1e30])
def test_log1mexp_is_zero_with_zero_slope_where_the_exponential_vanishes(x):
    x = torch.tensor(x, requires_grad=True)
    y = stable.log1mexp(x)
    y.backward()
    assert y.item() == 0.0
    assert x.grad.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_of_log_inverts_the_logarithm_of_the_sigmoid(dtype):
    logits = torch.linspace(-15.0, 12.0, 28, dtype=torch.float64)
    found = stable.logit_of_log(torch.nn.functional.logsigmoid(logits).to(dtype))
    torch.testing.assert_close(found.double(), logits, rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=1e-5)


@pytest.mark.parametrize("log_p", [-1e30, -200.0, -16.0, -1e-8, -1e-30, 0.0])
def test_logit_of_log_is_held_like_torch_distributions_and_passes_no_gradient_beyond(log_p):
    log_p = torch.tensor(log_p, requires_grad=True)
    logit = stable.logit_of_log(log_p)
    logit.backward()
    edge = math.log((1.0 - stable.UNIT_EPS) / stable.UNIT_EPS)
    assert abs(logit.item()) == pytest.approx(edge, rel=1e-2)
    assert math.copysign(1.0, logit.item()) == (1.0 if log_p.item() > -1.0 else -1.0)
    assert log_p.grad.item() == 0.0
    assert torch.finfo(torch.float32).eps == stable.UNIT_EPS


def test_log_erfcx():
    points = [-1.0, -0.3, 0.2, 1.0, 10.0, 999.0, 1001.0, 1e5, 1e10, 1e15]
    check(stable.log_erfcx, lambda z: mp.log(mp.erfc(z)) + z * z, points, torch.float64, 1e-9)


def test_log_ndtr():
    points = [-1e10, -1e5, -1420.0, -1400.0, -40.0, -5.0, -1.01, -0.99, -0.1, 0.5, 3.0, 8.0]
    check(stable.log_ndtr, lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2), points, torch.float64, 1e-9)
