import math

import pytest
import torch
import torch.nn.functional as F

from bayesprune.distributions import kumaraswamy
from bayesprune.gates.beta_bernoulli import RAW_ONE, BetaBernoulli, concentration_a, concentration_b


def set_raw(gate, raw_a, raw_b=RAW_ONE):
    with torch.no_grad():
        gate.raw_a.fill_(raw_a)
        gate.raw_b.fill_(raw_b)
    return gate


def test_holds_exactly_two_vectors():
    gate = BetaBernoulli(7)
    assert {name: tuple(value.shape) for name, value in gate.named_parameters()} == {"raw_a": (7,), "raw_b": (7,)}
    assert set(gate.state_dict()) == {"raw_a", "raw_b"}


def test_starts_where_the_paper_does():
    gate = BetaBernoulli(3)
    assert gate.keep_probability().tolist() == pytest.approx([0.680] * 3, abs=5e-4)
    assert gate.kl().item() == pytest.approx(3 * 8.97, abs=0.015)
    lenet = BetaBernoulli(3, keep_init=-1.0)
    assert lenet.keep_probability().tolist() == pytest.approx([0.2385] * 3, abs=5e-5)
    assert lenet.kl().item() == pytest.approx(3 * 7.05, abs=0.015)


def test_published_divergence_of_the_uniform():
    assert set_raw(BetaBernoulli(1), RAW_ONE).kl().item() == pytest.approx(8.2104, abs=1e-3)


def test_the_map_from_raw_parameters_is_held_as_published_without_gradient_beyond():
    raw = torch.tensor([-30.0, -10.0, 0.0, 50.0, 80.0], requires_grad=True)
    a, b = concentration_a(raw), concentration_b(raw)
    assert a.min().item() == pytest.approx(4.54e-5, rel=1e-3)
    assert a.tolist()[2:] == pytest.approx([math.log(2), 50.0, 80.0])
    assert b.tolist() == pytest.approx([4.54e-5, 4.54e-5, math.log(2), 50.0, 50.0], rel=1e-3)
    assert torch.autograd.grad(a.sum(), raw, retain_graph=True)[0][0] == 0.0
    slope = torch.autograd.grad(b.sum(), raw)[0]
    assert slope[0] == 0.0
    assert slope[-1] == 0.0


def test_units_are_pruned_below_the_threshold():
    """With b = 1, E[pi] = a / (1 + a): the threshold of 1e-3 lies at raw a = -6.91."""
    gate = BetaBernoulli(4)
    with torch.no_grad():
        gate.raw_a.copy_(torch.tensor([-9.21, -6.92, -6.90, 2.0]))
    assert gate.keep().tolist() == [False, False, True, True]
    mask = gate.mean_mask(torch.zeros(1, 4))
    assert mask[:2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(mask[2:], gate.keep_probability()[2:])


@pytest.mark.parametrize(("threshold", "kept"), [(1e-2, False), (1e-4, True)])
def test_the_threshold_is_an_argument(threshold, kept):
    gate = set_raw(BetaBernoulli(1, threshold=threshold), -6.9)
    assert gate.keep().item() is kept


def test_a_unit_exactly_at_the_threshold_is_kept():
    probability = BetaBernoulli(1).keep_probability().item()
    assert BetaBernoulli(1, threshold=probability).keep().item()


def test_pi_is_drawn_once_a_batch_and_z_for_each_sample(with_noise):
    """In a large batch the frequency of each unit is its drawn pi, far from the mean of pi."""
    samples, units = 20_000, 30
    gate = set_raw(BetaBernoulli(units, temperature=1e-3), 0.0).train()
    with_noise(gate, seed=3)
    u = gate.uniform(0, (units,), gate.raw_a)
    pi = (1 - u ** (1 / F.softplus(gate.raw_b))) ** (1 / F.softplus(gate.raw_a))
    frequency = (gate(torch.ones(samples, units)) > 0.5).float().mean(0)
    error = (pi * (1 - pi) / samples).sqrt()
    assert ((frequency - pi).abs() < 5 * error + 1e-4).all()
    assert (pi - gate.keep_probability()).abs().mean() > 0.15


@pytest.mark.parametrize("keyed", [True, False])
def test_drawn_masks_have_the_posterior_mean(with_noise, keyed):
    """Over many units, at a low temperature; it would not be so if z were drawn with the same noise as pi."""
    torch.manual_seed(0)
    gate = set_raw(BetaBernoulli(20_000, temperature=1e-3), -1.0).train()
    if keyed:
        with_noise(gate)
    mask = gate(torch.ones(2, 20_000))[0]
    mean = gate.keep_probability()[0].item()
    assert abs(mask.mean().item() - mean) < 5 * math.sqrt(mean * (1 - mean) / 20_000)


@pytest.mark.parametrize("raw", [-30.0, -10.0, 60.0])
def test_training_at_the_extremes_stays_finite(raw):
    torch.manual_seed(0)
    for raw_a, raw_b in [(raw, RAW_ONE), (0.0, raw), (raw, raw), (raw, -raw)]:
        gate = set_raw(BetaBernoulli(50), raw_a, raw_b).train()
        loss = gate(torch.ones(8, 50)).square().sum() + gate.kl()
        loss.backward()
        assert loss.isfinite()
        assert gate.raw_a.grad.isfinite().all()
        assert gate.raw_b.grad.isfinite().all()


def test_alpha_is_the_parameter_of_the_prior():
    gate = BetaBernoulli(2, alpha=0.5)
    expected = kumaraswamy.kl_to_beta(concentration_a(gate.raw_a), concentration_b(gate.raw_b), 0.5).sum()
    torch.testing.assert_close(gate.kl(), expected)
    assert gate.kl() < BetaBernoulli(2).kl()


def test_groups_are_part_of_the_gate_and_not_of_its_parameters():
    gate = BetaBernoulli(2, groups=torch.tensor([0, 1, 1]))
    assert set(gate.state_dict()) == {"raw_a", "raw_b"}
    assert gate.raw_a.shape == (2,)
