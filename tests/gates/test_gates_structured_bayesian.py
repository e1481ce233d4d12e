import math

import pytest
import torch

from bayesprune.gates.structured_bayesian import StructuredBayesian


def set_to(gate, mu, log_sigma):
    with torch.no_grad():
        gate.mu.copy_(torch.as_tensor(mu))
        gate.log_sigma.copy_(torch.as_tensor(log_sigma))
    return gate


def test_starts_as_published():
    gate = StructuredBayesian(3)
    assert set(gate.state_dict()) == {"mu", "log_sigma"}
    assert gate.mu.tolist() == [0.0] * 3
    assert gate.log_sigma.tolist() == [-5.0] * 3
    assert gate.kl().item() == pytest.approx(3 * 7.27, abs=0.015)
    assert gate.keep().all()


def test_kept_while_the_signal_exceeds_the_noise():
    """A truncated log-normal of small sigma inside the interval is log-normal: SNR = 1 / sqrt(exp(sigma^2) - 1)."""
    gate = set_to(StructuredBayesian(3), -10.0, [math.log(0.5), math.log(0.8), math.log(0.87)])
    assert gate.signal_to_noise().tolist() == pytest.approx([1 / math.sqrt(math.expm1(s * s)) for s in (0.5, 0.8, 0.87)], rel=1e-4)
    assert gate.keep().tolist() == [True, True, False]
    mask = gate.mean_mask(torch.zeros(1, 3))
    assert mask.tolist() == pytest.approx([math.exp(-10 + 0.125), math.exp(-10 + 0.32), 0.0], rel=1e-4)
    assert StructuredBayesian(1, threshold=1e9).keep().item() is False


def test_keep_probability_is_that_of_a_bernoulli_variable_with_the_same_noise():
    gate = set_to(StructuredBayesian(4), [-5.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 2.0])
    snr = gate.signal_to_noise()
    torch.testing.assert_close(gate.keep_probability(), snr**2 / (1 + snr**2))
    # A Bernoulli variable of rate p has mean p and variance p (1 - p), thus a squared signal-to-noise ratio of p / (1 - p).
    p = gate.keep_probability()
    torch.testing.assert_close(p / (1 - p), snr**2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("raw", [-1e3, -20.0, 5.0, 1e3])
def test_parameters_are_held_within_the_published_box(raw):
    for mu, log_sigma in [(raw, -5.0), (0.0, raw), (raw, raw), (raw, -raw)]:
        gate = set_to(StructuredBayesian(4), mu, log_sigma).train()
        held = set_to(StructuredBayesian(4), min(max(mu, -20.0), 5.0), min(max(log_sigma, -20.0), 5.0))
        assert torch.equal(gate.kl(), held.kl())
        loss = gate(torch.ones(2, 4)).sum() + gate.kl()
        loss.backward()
        assert loss.isfinite()
        assert gate.mu.grad.isfinite().all()
        assert gate.log_sigma.grad.isfinite().all()


def test_drawn_masks_have_the_mean_of_the_mean_mask():
    torch.manual_seed(0)
    gate = set_to(StructuredBayesian(40_000), -1.0, -0.5).train()
    mask = gate(torch.ones(2, 40_000))[0]
    mean = gate.eval()(torch.ones(1, 40_000))[0, 0].item()
    assert abs(mask.mean().item() - mean) < 5 * mask.std().item() / math.sqrt(40_000)


def test_the_method_freezes_the_networks_batch_norm():
    assert StructuredBayesian.freezes_batch_norm
