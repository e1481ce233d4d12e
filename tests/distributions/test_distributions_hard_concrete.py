import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.distributions import hard_concrete

TEMPERATURE = 2.0 / 3.0
DRAWS = 100_000
EDGE = 2.3979  # log(11): where the test-time gate reaches zero and one


def draws(log_alpha, temperature=TEMPERATURE):
    u = torch.rand(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return hard_concrete.sample(torch.tensor(log_alpha, dtype=torch.float64), u, temperature)


@pytest.mark.parametrize("log_alpha", [-4.0, -2.398, 0.0, 1.386, 3.0])
@pytest.mark.parametrize("temperature", [0.1, TEMPERATURE])
def test_probability_of_a_gate_that_is_not_zero(log_alpha, temperature):
    z = draws(log_alpha, temperature)
    p = hard_concrete.probability_nonzero(torch.tensor(log_alpha, dtype=torch.float64), temperature).item()
    assert p == pytest.approx(1 / (1 + math.exp(-log_alpha + temperature * math.log(0.1 / 1.1))))
    assert abs((z > 0).double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / DRAWS)


def test_exact_zeros_and_ones_come_with_the_mass_that_was_clipped():
    z = draws(0.0)
    assert z.min() == 0.0
    assert z.max() == 1.0
    zeros, ones = (z == 0.0).double().mean().item(), (z == 1.0).double().mean().item()
    expected = 1 - hard_concrete.probability_nonzero(torch.tensor(0.0, dtype=torch.float64), TEMPERATURE).item()
    error = math.sqrt(expected * (1 - expected) / DRAWS)
    assert abs(zeros - expected) < 5 * error
    assert abs(ones - expected) < 5 * error  # the stretch is symmetric


def test_in_the_low_temperature_limit_it_is_a_bernoulli_variable():
    z = draws(-1.0, 1e-4)
    p = 1 / (1 + math.e)
    assert set(z.unique().tolist()) >= {0.0, 1.0}
    assert abs(z.mean().item() - p) < 5 * math.sqrt(p * (1 - p) / DRAWS)


@pytest.mark.parametrize(("log_alpha", "gate"), [(-10.0, 0.0), (-EDGE - 1e-3, 0.0), (0.0, 0.5), (EDGE + 1e-3, 1.0), (10.0, 1.0)])
def test_gate_at_test_time(log_alpha, gate):
    assert hard_concrete.median_gate(torch.tensor(log_alpha)).item() == pytest.approx(gate)


def test_gate_at_test_time_is_zero_or_one_exactly_from_the_published_edges_on():
    inside = torch.tensor([-EDGE + 1e-3, EDGE - 1e-3])
    assert ((hard_concrete.median_gate(inside) > 0) & (hard_concrete.median_gate(inside) < 1)).all()
    assert hard_concrete.median_gate(torch.tensor([-2.398])).item() == 0.0
    assert hard_concrete.median_gate(torch.tensor([2.398])).item() == 1.0
    assert pytest.approx(2.398, abs=5e-4) == EDGE


@pytest.mark.parametrize("log_alpha", [-1.0, 0.5])
def test_gate_at_test_time_is_the_median_of_the_draws(log_alpha):
    z = hard_concrete.median_gate(torch.tensor(log_alpha, dtype=torch.float64))
    below = (draws(log_alpha, 1.0) < z).double().mean().item()
    assert abs(below - 0.5) < 5 * 0.5 / math.sqrt(DRAWS)


@settings(deadline=None)
@given(log_alpha=st.floats(-30.0, 30.0, width=32), u=st.floats(0.0, 1.0, width=32))
def test_range_and_finite_gradients(log_alpha, u):
    log_alpha = torch.tensor(log_alpha, requires_grad=True)
    for value in (
        hard_concrete.sample(log_alpha, torch.tensor(u), TEMPERATURE),
        hard_concrete.median_gate(log_alpha),
        hard_concrete.probability_nonzero(log_alpha, TEMPERATURE),
    ):
        assert 0.0 <= value.item() <= 1.0
        (slope,) = torch.autograd.grad(value, log_alpha)
        assert slope.isfinite()
        assert slope >= 0.0
