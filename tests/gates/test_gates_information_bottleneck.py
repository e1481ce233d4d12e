import math

import pytest
import torch

from bayesprune.gates.information_bottleneck import InformationBottleneck


def set_to(gate, mu, log_variance):
    with torch.no_grad():
        gate.mu.copy_(torch.as_tensor(mu))
        gate.log_variance.copy_(torch.as_tensor(log_variance))
    return gate


def test_starts_as_published():
    torch.manual_seed(0)
    gate = InformationBottleneck(20_000)
    assert set(gate.state_dict()) == {"mu", "log_variance"}
    for parameter, mean in [(gate.mu, 1.0), (gate.log_variance, -9.0)]:
        assert abs(parameter.mean().item() - mean) < 5 * 0.01 / math.sqrt(20_000)
        assert parameter.std().item() == pytest.approx(0.01, rel=0.05)
    assert gate.kl().item() / 20_000 == pytest.approx(4.5, abs=2e-3)
    assert gate.keep().all()


def test_divergence_as_published():
    mu, log_variance = torch.tensor([-2.0, 0.3, 1.0, 1.5]), torch.tensor([-9.0, -2.0, 0.0, 3.0])
    gate = set_to(InformationBottleneck(4), mu, log_variance)
    published = 0.5 * torch.log(1 + mu**2 / (log_variance.exp() + 1e-8)).sum()
    torch.testing.assert_close(gate.kl(), published, rtol=1e-4, atol=0.0)


def test_kept_while_log_alpha_is_below_the_threshold():
    gate = set_to(InformationBottleneck(4), [1.0, 1.0, -3.0, 0.0], [-0.1, 0.1, 2.1, -30.0])
    assert gate.log_alpha().tolist() == pytest.approx([-0.1, 0.1, 2.1 - 2 * math.log(3), -30 - math.log(1e-8)], abs=1e-5)
    assert gate.keep().tolist() == [True, False, True, True]
    assert gate.mean_mask(torch.zeros(1, 4)).tolist() == [1.0, 0.0, -3.0, 0.0]
    assert set_to(InformationBottleneck(1, threshold=1.0), 1.0, 0.5).keep().item()


def test_keep_probability_is_that_of_dropout_with_the_same_noise():
    gate = set_to(InformationBottleneck(3), [1.0, 0.5, 2.0], [-3.0, 0.0, 1.0])
    alpha = gate.log_variance.exp() / gate.mu**2
    torch.testing.assert_close(gate.keep_probability(), 1 / (1 + alpha))


def test_drawn_masks_are_gaussian():
    torch.manual_seed(0)
    samples = 40_000
    gate = set_to(InformationBottleneck(2), [1.0, -0.5], [-1.0, 0.7]).train()
    z = gate(torch.ones(samples, 2)).double()
    std = (0.5 * gate.log_variance).exp().double()
    assert ((z.mean(0) - gate.mu).abs() < 5 * std / math.sqrt(samples)).all()
    assert ((z.var(0) / std**2 - 1).abs() < 5 * math.sqrt(2 / samples)).all()
    assert abs(((z - z.mean(0)) / std).prod(1).mean()) < 5 / math.sqrt(samples)
    assert ((((z - gate.mu) / std) < -1.2816).double().mean(0) - 0.1).abs().max() < 5 * math.sqrt(0.09 / samples)
