"""Every registered method: its divergence or penalty, and what its class says about itself."""

import math

import pytest
import torch

from bayesprune.gates import METHODS, Tradeoff
from bayesprune.gates.collection import divergences

PENALTIES = {"l0", "gd", "cd"}
"""Methods whose ``kl`` is a penalty, finite but not a divergence; their formulas are checked in their own files."""


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0, 30.0])
def test_kl_is_a_finite_scalar_that_can_be_differentiated(make_gated, method, spread):
    gated = make_gated(20, spread=spread)
    kl = gated.gate.kl()
    assert kl.shape == ()
    assert kl.isfinite()
    assert method in PENALTIES or kl >= 0
    for gradient in torch.autograd.grad(kl, list(gated.parameters()), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


def test_kl_is_summed_over_units(make_gated, method):
    """A gate of 2n units, each twice, has twice the divergence of the gate of n units; where weights enter, they are doubled too."""
    one, two = make_gated(5), make_gated(10)
    state = {
        name: torch.cat([value, value], dim=1 if name == "layer.weight" else 0) if value.shape != two.state_dict()[name].shape else value
        for name, value in one.state_dict().items()
    }
    two.load_state_dict(state)
    if method == "l0":  # the bias belongs to the layer, not to its input units
        torch.nn.init.zeros_(one.layer.bias)
        torch.nn.init.zeros_(two.layer.bias)
    torch.testing.assert_close(two.gate.kl(), 2 * one.gate.kl())


def test_divergences_of_several_gates_are_those_of_each(make_gated):
    gated = [make_gated(count, spread=1.0) for count in (5, 1, 8)]
    apart = [each.gate.kl() for each in gated]
    together = divergences([each.gate for each in gated])
    torch.testing.assert_close(together, apart)
    parameters = [parameter for each in gated for parameter in each.parameters()]
    gradients = [torch.autograd.grad(sum(found), parameters, allow_unused=True) for found in (together, apart)]
    torch.testing.assert_close(*gradients)


def test_kl_is_computed_from_the_parameters_as_they_are_now(make_gate):
    gate = make_gate()
    before = gate.kl()
    gate.train()(torch.randn(4, 6))
    assert torch.equal(gate.kl(), before)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter += 0.5
    assert not torch.equal(gate.kl(), before)


def test_sampling_leaves_nothing_behind_but_running_statistics(make_gate):
    gate = make_gate().train()
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    attributes = dict(gate.__dict__)
    gate(torch.randn(4, 6))
    changed = {name for name, value in gate.state_dict().items() if not torch.equal(value, before[name])}
    assert changed <= {"running_mean", "running_var"}
    assert gate.__dict__ == attributes


def test_training_moves_the_parameters(make_gated):
    """Both terms of the objective have a gradient for some gate parameter."""
    gated = make_gated(spread=0.1).train()
    parameters = list(gated.gate.parameters())
    fit = torch.autograd.grad(gated(torch.rand(32, 6)).square().mean(), parameters, allow_unused=True)
    price = torch.autograd.grad(gated.gate.kl(), parameters, allow_unused=True)
    for gradients in (fit, price):
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    assert all(any(gradient is not None for gradient in pair) for pair in zip(fit, price, strict=True))


def test_the_class_explains_its_tradeoff(method):
    cls = METHODS[method]
    assert cls.method == method
    assert len(cls.tradeoff_meaning) > 10
    for tradeoff in (1e-3, cls.default_tradeoff):
        converted = cls.from_tradeoff(tradeoff, 1000)
        assert isinstance(converted, Tradeoff)
        assert math.isfinite(converted.kl_scale)
        assert converted.kl_scale >= 0
        cls(3, **converted.hyperparameters)


def test_keys_give_all_the_noise_of_a_forward_and_none_twice(make_gate):
    gate = make_gate().train()
    assert gate.noise_key.shape == (gate.noise_draws, 2)
    state, drawn = torch.get_rng_state(), []
    original = gate.uniform
    gate.uniform = lambda draw, *arguments, **rows: (drawn.append(draw), original(draw, *arguments, **rows))[1]
    gate(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(drawn)) == len(drawn) >= 1
    assert set(drawn) <= set(range(gate.noise_draws))
