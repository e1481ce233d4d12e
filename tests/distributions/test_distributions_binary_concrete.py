import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.distributions import binary_concrete

DRAWS = 100_000


def uniforms(count=DRAWS, seed=3):
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [1e-3, 0.2385, 0.5, 0.9])
def test_at_low_temperature_it_is_a_bernoulli_variable(p):
    z = binary_concrete.sample(torch.logit(torch.tensor(p, dtype=torch.float64)), uniforms(), 1e-4)
    assert ((z < 1e-3) | (z > 1 - 1e-3)).double().mean() > 0.99
    error = math.sqrt(p * (1 - p) / DRAWS)
    assert abs((z > 0.5).double().mean().item() - p) < 5 * error
    assert abs(z.mean().item() - p) < 5 * error


@pytest.mark.parametrize("temperature", [0.1, 2.0 / 3.0, 5.0])
def test_at_any_temperature_it_exceeds_one_half_with_probability_p(temperature):
    p = 0.3
    z = binary_concrete.sample(torch.logit(torch.tensor(p, dtype=torch.float64)), uniforms(), temperature)
    assert abs((z > 0.5).double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / DRAWS)


def test_same_draws_as_the_formula_and_as_torch_distributions_hold_them():
    logits, u = torch.tensor([-3.0, 0.0, 2.0]), torch.tensor([0.2, 0.5, 0.999])
    by_hand = 1.0 / (1.0 + torch.exp(-(logits + torch.log(u) - torch.log1p(-u)) / 0.1))
    torch.testing.assert_close(binary_concrete.sample(logits, u, 0.1), by_hand)
    eps = torch.finfo(torch.float32).eps
    at_the_ends = binary_concrete.sample(torch.zeros(2), torch.tensor([0.0, 1.0]), 1.0)
    torch.testing.assert_close(at_the_ends, torch.tensor([eps, 1 - eps]), rtol=1e-3, atol=0.0)


@settings(deadline=None)
@given(logit=st.floats(-50.0, 50.0, width=32), u=st.floats(0.0, 1.0, width=32), temperature=st.sampled_from([0.01, 0.1, 2.0 / 3.0]))
def test_values_and_gradients_are_finite_and_within_the_unit_interval(logit, u, temperature):
    logit = torch.tensor(logit, requires_grad=True)
    z = binary_concrete.sample(logit, torch.tensor(u), temperature)
    z.backward()
    assert 0.0 <= z.item() <= 1.0
    assert logit.grad.isfinite()
    assert logit.grad >= 0.0
