import math

import pytest
import torch
from scipy import stats

from bayesprune.gates.generalized_dropout import GeneralizedDropout


def gate_with(raw, **arguments):
    gate = GeneralizedDropout(len(raw), **arguments)
    with torch.no_grad():
        gate.raw_keep.copy_(torch.tensor(raw))
    return gate


def test_starts_as_published():
    gate = GeneralizedDropout(3)
    assert set(gate.state_dict()) == {"raw_keep"}
    assert gate.keep_probability().tolist() == pytest.approx([0.632] * 3, abs=5e-4)
    assert (gate.alpha, gate.beta, gate.threshold, gate.temperature) == (1e-4, 0.5, 1e-3, 0.1)


@pytest.mark.parametrize("alpha", [1e-3, 1e-6, 2.0])
@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_penalty_is_the_negative_log_density_of_the_prior(alpha, beta):
    raw = [-4.0, -0.3, 0.5413, 2.0]
    keep = [1 / (1 + math.exp(-value)) for value in raw]
    expected = -sum(stats.beta.logpdf(k, alpha, beta) for k in keep)
    by_hand = sum((1 - alpha) * math.log(k) + (1 - beta) * math.log(1 - k) for k in keep)
    by_hand += len(raw) * (math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta))
    assert by_hand == pytest.approx(expected, rel=1e-9)
    assert gate_with(raw, alpha=alpha, beta=beta).kl().item() == pytest.approx(expected, rel=1e-5)


def test_penalty_may_be_negative_and_drives_to_both_ends():
    assert gate_with([-30.0]).kl() < gate_with([0.0]).kl()
    assert gate_with([-30.0]).kl().item() < 0.0
    middle = gate_with([2.0])
    middle.kl().backward()
    assert middle.raw_keep.grad.item() != 0.0


@pytest.mark.parametrize("raw", [-1e4, -60.0, 60.0, 1e4])
def test_extremes_are_finite(raw):
    gate = gate_with([raw] * 4).train()
    torch.manual_seed(0)
    loss = gate(torch.ones(3, 4)).sum() + gate.kl()
    loss.backward()
    assert loss.isfinite()
    assert gate.raw_keep.grad.isfinite().all()
    # The published guard: log(k + 1e-20)
    assert gate.kl().item() == pytest.approx(4 * ((1 - 1e-4 if raw < 0 else 0.5) * math.log(1e-20) + math.log(1 / 1e-4)), rel=2e-2)


def test_kept_above_the_threshold():
    gate = gate_with([-6.92, -6.89, 3.0])
    assert gate.keep().tolist() == [False, True, True]
    assert gate.mean_mask(torch.zeros(1, 3)).tolist() == pytest.approx([0.0, torch.sigmoid(torch.tensor(-6.89)).item(), 0.9526], rel=1e-4)


def test_frequency_of_the_draws():
    torch.manual_seed(0)
    samples = 40_000
    gate = gate_with([-2.0, 0.0, 1.0], temperature=1e-3).train()
    keep = gate.keep_probability()
    z = gate(torch.ones(samples, 3))
    assert ((z.mean(0) - keep).abs() < 5 * (keep * (1 - keep) / samples).sqrt()).all()
