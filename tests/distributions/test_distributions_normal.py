import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from bayesprune.distributions import normal


@pytest.mark.parametrize("mean", [-3.0, 0.0, 1.0])
@pytest.mark.parametrize("std", [1e-3, 1.0, 7.0])
@pytest.mark.parametrize("prior_std", [1.0, math.sqrt(5.0)])
def test_kl_to_centred_agrees_with_torch_distributions(mean, std, prior_std):
    mean, std = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, std), Normal(torch.zeros(()).double(), prior_std))
    torch.testing.assert_close(normal.kl_to_centred(mean, std, prior_std), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mean", [-2.0, 0.01, 1.0])
@pytest.mark.parametrize("log_variance", [-9.0, 0.0, 3.0])
def test_kl_to_best_centred_is_the_smallest_kl_to_any_centred_normal(mean, log_variance):
    mean, log_variance = torch.tensor(mean, dtype=torch.float64), torch.tensor(log_variance, dtype=torch.float64)
    std = torch.exp(0.5 * log_variance)
    prior_stds = torch.exp(torch.linspace(-6.0, 6.0, 4001, dtype=torch.float64))
    smallest = kl_divergence(Normal(mean, std), Normal(torch.zeros(()).double(), prior_stds)).min()
    assert normal.kl_to_best_centred(mean, log_variance).item() == pytest.approx(smallest.item(), rel=1e-3, abs=1e-4)


def test_published_value_at_the_start():
    assert normal.kl_to_best_centred(torch.tensor(1.0), torch.tensor(-9.0)).item() == pytest.approx(4.5, abs=1e-3)


@pytest.mark.parametrize("mean", [0.0, 1e-20, 1e6])
@pytest.mark.parametrize("log_variance", [-80.0, 0.0, 80.0])
def test_extremes_are_finite_with_finite_gradients(mean, log_variance):
    mean, log_variance = torch.tensor(mean, requires_grad=True), torch.tensor(log_variance, requires_grad=True)
    kl = normal.kl_to_best_centred(mean, log_variance)
    slopes = torch.autograd.grad(kl, (mean, log_variance))
    assert kl.isfinite()
    assert kl >= 0
    assert all(slope.isfinite() for slope in slopes)
