import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence

from bayesprune.errors import InputError
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli

SHAPES = [(16, 5), (16, 5, 3), (16, 5, 3, 4)]


def inputs(shape, seed=0):
    return 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 1.0


def norm_like(gate):
    """PyTorch's own batch norm with the gate's parameters and statistics."""
    norm = nn.BatchNorm1d(gate.num_units)
    with torch.no_grad():
        norm.weight.copy_(gate.scale)
        norm.bias.copy_(gate.shift)
        norm.running_mean.copy_(gate.running_mean)
        norm.running_var.copy_(gate.running_var)
    return norm


def pooled(x):
    return x if x.ndim == 2 else x.flatten(2).mean(2)


def test_state_and_start():
    gate = DependentBetaBernoulli(5)
    assert {name for name, _ in gate.named_parameters()} == {"scale", "shift", "raw_shift_std"}
    assert set(gate.state_dict()) == {"scale", "shift", "raw_shift_std", "raw_a", "raw_b", "running_mean", "running_var"}
    assert gate.shift.tolist() == [1.0] * 5
    assert F.softplus(gate.raw_shift_std).tolist() == pytest.approx([1.0] * 5, abs=1e-4)
    assert gate.relaxation == "product"
    assert gate.prior_std == pytest.approx(math.sqrt(5.0))


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_statistics_in_training(scatter, shape):
    gate = scatter(DependentBetaBernoulli(5), 0.5).train()
    norm, x = norm_like(gate).train(), inputs(shape)
    expected = gate.keep_probability() * norm(pooled(x)).clamp(1e-10, 1 - 1e-10)
    torch.testing.assert_close(gate.keep_probability(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_training_forward_moves_the_running_statistics_like_batch_norm(scatter, shape):
    gate = scatter(DependentBetaBernoulli(5), 0.5).train()
    norm, x = norm_like(gate).train(), inputs(shape)
    for _ in range(2):
        gate(x)
        norm(pooled(x))
    torch.testing.assert_close(gate.running_mean, norm.running_mean)
    torch.testing.assert_close(gate.running_var, norm.running_var)


@pytest.mark.parametrize("shape", SHAPES)
def test_running_statistics_in_evaluation(scatter, shape):
    gate = scatter(DependentBetaBernoulli(5), 0.5).eval()
    norm, x = norm_like(gate).eval(), inputs(shape)
    before = gate.running_mean.clone(), gate.running_var.clone()
    expected = gate.keep_probability() * norm(pooled(x)).clamp(1e-10, 1 - 1e-10)
    torch.testing.assert_close(gate.mean_mask(x), torch.where(expected > 1e-3, expected, 0.0), rtol=1e-5, atol=1e-6)
    assert torch.equal(before[0], gate.running_mean)
    assert torch.equal(before[1], gate.running_var)


@pytest.mark.parametrize("relaxation", ["product", "single"])
def test_a_training_forward_updates_the_running_statistics_once(relaxation):
    gate = DependentBetaBernoulli(5, relaxation=relaxation, momentum=0.2).train()
    x = inputs((16, 5))
    gate(x)
    torch.testing.assert_close(gate.running_mean, 0.2 * x.mean(0))
    torch.testing.assert_close(gate.running_var, 0.8 + 0.2 * x.var(0))


def test_sampling_in_evaluation_leaves_the_running_statistics_alone():
    gate = DependentBetaBernoulli(5).eval()
    gate.sampling = True
    x = inputs((16, 5))
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    assert not torch.equal(gate(x), gate(x))
    assert all(torch.equal(value, before[name]) for name, value in gate.state_dict().items())


@pytest.mark.parametrize("question", ["keep", "keep_probability"])
def test_asking_in_training_leaves_the_running_statistics_alone(question):
    """Only a forward moves them: a question about which units are kept is no training step."""
    gate, x = DependentBetaBernoulli(5).train(), inputs((16, 5))
    before = gate.running_mean.clone(), gate.running_var.clone()
    getattr(gate, question)(x)
    assert torch.equal(gate.running_mean, before[0])
    assert torch.equal(gate.running_var, before[1])


@pytest.mark.parametrize("shape", [(1, 5), (1, 5, 3, 3)])
def test_a_batch_of_one_in_training_uses_running_statistics_and_changes_nothing(scatter, with_noise, shape):
    gate, x = scatter(DependentBetaBernoulli(5), 0.5), inputs(shape)
    with_noise(gate)
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    y = gate.train()(x)
    assert y.isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in gate.state_dict().items())
    gate.eval()
    gate.sampling = True
    assert torch.equal(gate(x), y)


@pytest.mark.parametrize("relaxation", ["product", "single"])
@pytest.mark.parametrize("training", [True, False])
def test_no_gradient_reaches_the_input_through_the_probabilities(with_noise, relaxation, training):
    gate = DependentBetaBernoulli(5, relaxation=relaxation).train(training)
    with_noise(gate)
    x = inputs((16, 5)).requires_grad_()
    mask = gate.sample_mask(x) if training else gate.mean_mask(x)
    (slope,) = torch.autograd.grad(gate(x).sum(), x)
    torch.testing.assert_close(slope, mask.detach())


def test_divergence_of_beta(scatter):
    gate = scatter(DependentBetaBernoulli(7), 1.0)
    posterior, prior = Normal(gate.shift, F.softplus(gate.raw_shift_std)), Normal(0.0, math.sqrt(5.0))
    torch.testing.assert_close(gate.kl(), kl_divergence(posterior, prior).sum())
    assert DependentBetaBernoulli(1, prior_std=1.0, shift_init=0.0).kl().item() == pytest.approx(0.0, abs=1e-6)


def test_q_of_pi_is_fixed():
    """Neither the divergence nor the draws have a gradient for a and b, which live in buffers."""
    gate = DependentBetaBernoulli(5)
    assert not gate.raw_a.requires_grad
    assert not gate.raw_b.requires_grad
    assert "raw_a" in dict(gate.named_buffers())


def test_comes_from_a_trained_gate_with_all_that_it_knows(scatter):
    bb = BetaBernoulli(3, threshold=0.02, temperature=0.3, channel_dim=-1, groups=torch.tensor([0, 0, 1, 2])).double().eval()
    scatter(bb, 3.0)
    bb.position = 4
    bb.control(nn.Linear(4, 2).double(), "inputs")
    dbb = DependentBetaBernoulli.from_beta_bernoulli(bb, shift_init=2.0)
    assert torch.equal(dbb.raw_a, bb.raw_a)
    assert torch.equal(dbb.raw_b, bb.raw_b)
    assert dbb.raw_a.data_ptr() != bb.raw_a.data_ptr()
    assert (dbb.threshold, dbb.temperature, dbb.position, dbb.training) == (0.02, 0.3, 4, False)
    assert dbb.controlled == bb.controlled
    assert torch.equal(dbb.units.groups, bb.units.groups)
    assert dbb.units.channel_dim == -1
    assert dbb.scale.dtype == torch.float64
    assert dbb.shift.tolist() == [2.0] * 3
    assert torch.equal(dbb.keep(), bb.keep())
    torch.testing.assert_close(dbb.keep_probability(), bb.keep_probability())


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(0.1, 10.0), threshold=st.floats(1e-4, 0.5), training=st.booleans())
def test_the_units_for_an_input_are_a_subset_of_those_that_bb_kept(scatter, seed, spread, threshold, training):
    generator = torch.Generator().manual_seed(seed)
    bb = BetaBernoulli(20, threshold=threshold, keep_init=0.0)
    scatter(bb, spread, seed)
    dbb = DependentBetaBernoulli.from_beta_bernoulli(bb)
    q_of_pi = dbb.raw_a.clone(), dbb.raw_b.clone()
    scatter(dbb, spread, seed + 1)
    dbb.raw_a.copy_(q_of_pi[0])
    dbb.raw_b.copy_(q_of_pi[1])
    x = 10.0 * torch.randn(6, 20, generator=generator)
    used = dbb.train(training).keep(x)
    assert used.shape == (6, 20)
    assert not (used & ~bb.keep()).any()
    pruned_by_bb = ~bb.keep()
    assert (dbb.eval()(x)[:, pruned_by_bb] == 0).all()


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("relaxation", ["product", "single"])
def test_draws_have_the_mean_pi_times_phi(with_noise, relaxation, keyed):
    """At a tiny temperature, over many units with the same q(pi), beta almost fixed, and inputs that give phi = 0.3."""
    torch.manual_seed(0)
    units = 60_000
    gate = DependentBetaBernoulli(units, relaxation=relaxation, temperature=1e-3, shift_init=0.3).eval()
    nn.init.constant_(gate.raw_shift_std, -20.0)
    gate.sampling = True
    if keyed:
        with_noise(gate)
    z = gate(torch.full((2, units), 1e-7)) * 1e7
    expected = gate.keep_probability()[0].item() * 0.3
    for row in z:
        assert abs(row.mean().item() - expected) < 5 * math.sqrt(expected * (1 - expected) / units)
    assert ((z < 0.01) | (z > 0.99)).float().mean() > 0.99


def test_the_noise_on_beta_is_shared_in_the_batch(with_noise):
    """All samples of equal input have the same probability in a batch, and another in the next."""
    gate = DependentBetaBernoulli(4, temperature=1e-3, keep_init=1e6, shift_init=0.5).eval()
    nn.init.constant_(gate.raw_shift_std, -1.0)
    gate.sampling = True
    keys = with_noise(gate)
    x = torch.full((20_000, 4), 1e-7)
    for step in range(3):
        keys.set(keys.for_steps(step, 1)[0])
        shared = torch.special.ndtri(gate.uniform(0, (2, 4), gate.raw_a)[1])
        phi = (0.5 + F.softplus(torch.tensor(-1.0)) * shared).clamp(0, 1)
        frequency = (gate(x) * 1e7).mean(0)
        assert ((frequency - phi).abs() < 5 * (phi * (1 - phi) / 20_000).sqrt() + 1e-3).all()


def test_both_relaxations_are_offered_and_no_other():
    with pytest.raises(InputError, match="relaxation is 'product' or 'single', not 'hard'"):
        DependentBetaBernoulli(3, relaxation="hard")


def test_a_pruned_value_is_exactly_zero_for_that_sample():
    gate = DependentBetaBernoulli(2, shift_init=0.0, keep_init=5.0).eval()
    x = torch.tensor([[0.5, -0.5], [1e-4, 3.0]])
    mask = gate.mean_mask(x)
    assert mask[0, 1] == 0.0
    assert mask[1, 0] == 0.0
    assert mask[0, 0].item() == pytest.approx(0.5 * gate.keep_probability()[0].item(), rel=1e-4)
    assert torch.equal(gate.keep(x), mask > 0)


@pytest.mark.parametrize("raw", [-20.0, -90.0, -104.0, -500.0])
def test_divergence_of_tiny_deviations(raw):
    gate = DependentBetaBernoulli(2)
    gate.raw_shift_std.data.fill_(raw)
    divergence = gate.kl()
    (gradient,) = torch.autograd.grad(divergence, gate.raw_shift_std)
    assert divergence.dtype == torch.float32
    assert divergence.item() == pytest.approx(2 * (math.log(gate.prior_std) - raw + 1 / (2 * gate.prior_std**2) - 0.5), rel=1e-5)
    torch.testing.assert_close(gradient, torch.full((2,), -1.0))
