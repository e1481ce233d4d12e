import copy
import math

import pytest
import torch
from torch import nn

from bayesprune.attach import sparsify
from bayesprune.errors import InputError
from bayesprune.gates import gates
from bayesprune.gates.concrete_dropout import ConcreteDropout
from bayesprune.training.members import Members


def gate_with(units, rate, **arguments):
    return ConcreteDropout(units, drop_init=rate, **arguments)


@pytest.mark.parametrize(
    ("layer", "side", "units"),
    [
        (nn.Linear(3, 4), "inputs", 3),
        (nn.Linear(3, 4), "outputs", 4),
        (nn.Conv2d(3, 4, 5), "inputs", 3),
        (nn.Conv2d(3, 4, 5, bias=False), "outputs", 4),
    ],
)
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.7])
def test_penalty(layer, side, units, rate):
    """l^2 ||W||^2 / (1 - p) + w K (p log p + (1 - p) log(1 - p)), in nats for the whole data set."""
    gate = gate_with(units, rate, length_scale=0.3, entropy_weight=2.0)
    gate.control(layer, side)
    squares = sum(w * w for w in layer.weight.flatten().tolist())
    expected = 0.3**2 * squares / (1 - rate) + 2.0 * units * (rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert gate.kl().item() == pytest.approx(expected, rel=1e-5)


def test_penalty_may_be_negative():
    gate = gate_with(100, 0.5)
    gate.control(nn.Linear(100, 1), "inputs")
    assert gate.kl().item() < 0.0


def test_one_rate_a_layer():
    gate = ConcreteDropout(5)
    assert {name: tuple(value.shape) for name, value in gate.named_parameters()} == {"raw_drop": (1,)}
    assert gate.keep_probability().tolist() == pytest.approx([0.9] * 5)


def test_it_never_prunes_and_drops_nothing_at_test_time():
    gate, x = gate_with(4, 0.999).eval(), torch.randn(3, 4)
    assert gate.keep().all()
    assert torch.equal(gate(x), x)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws_are_dropout_with_scaling(rate):
    torch.manual_seed(0)
    samples = 40_000
    gate = gate_with(2, rate, temperature=1e-3).train()
    z = gate(torch.ones(samples, 2))
    dropped = (z < 0.5).float().mean(0)
    assert ((dropped - rate).abs() < 5 * math.sqrt(rate * (1 - rate) / samples)).all()
    assert ((z.mean(0) - 1).abs() < 5 * z.std(0) / math.sqrt(samples)).all()
    assert z.max().item() == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_the_published_temperatures(with_noise):
    """0.1 for vectors and 2/3 for feature maps: keep multiplier 1 - sigmoid((logit p + logit u) / t), scaled by 1 / (1 - p)."""
    gate = gate_with(3, 0.2).train()
    with_noise(gate)
    u = 1 - gate.uniform(0, (5, 3), gate.raw_drop)
    for shape, temperature in [((5, 3), 0.1), ((5, 3, 2, 2), 2 / 3)]:
        drop = torch.sigmoid((math.log(0.2 / 0.8) + torch.log(u / (1 - u))) / temperature)
        expected = ((1 - drop) / 0.8).reshape(5, 3, *[1] * (len(shape) - 2)).expand(shape)
        torch.testing.assert_close(gate(torch.ones(shape)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_rate_that_is_no_probability(rate):
    with pytest.raises(InputError, match="drop_init is a probability"):
        ConcreteDropout(3, drop_init=rate)


def test_the_weights_are_not_decayed_twice():
    assert ConcreteDropout.penalises_weights


def test_members_side_by_side_have_penalties_of_their_own():
    """Each with its length scale and entropy weight, as it would be alone, and so the gradients."""
    torch.manual_seed(0)
    settings = [(0.01, 1.0), (0.3, 1.0), (0.3, 0.1), (2.0, 5.0)]
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    models = [sparsify(network, "cd", length_scale=scale, entropy_weight=weight) for scale, weight in settings]
    members = Members(models)

    def penalty(model):
        return torch.stack([gate.kl() for gate in gates(model).values()]).sum()

    together = members.apply(penalty)
    gradients = torch.autograd.grad(together.sum(), list(members.parameters.values()), allow_unused=True)
    by_name = dict(zip(members.parameters, gradients, strict=True))
    assert len(set(together.tolist())) == len(settings)
    for member, model in enumerate(models):
        alone = penalty(model)
        torch.testing.assert_close(together[member], alone)
        alone.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(by_name[name][member], parameter.grad)
    assert by_name["0.input_gate.raw_drop"].unique().numel() == len(settings)
    scales = torch.tensor([scale for scale, _ in settings])
    kept = 1 / 0.9  # 1 / (1 - p) at the start
    expected = 2 * scales.square()[:, None, None] * network[0].weight * kept
    torch.testing.assert_close(by_name["0.weight"], expected, rtol=1e-4, atol=1e-7)


def test_settings_may_be_changed_and_copied():
    gate = ConcreteDropout(3, length_scale=0.1)
    gate.control(nn.Linear(3, 2), "inputs")
    before = gate.kl().item()
    gate.length_scale = 1.0
    assert gate.kl().item() > before
    twin = copy.deepcopy(gate)
    assert (twin.length_scale, twin.kl().item()) == (1.0, gate.kl().item())
    twin.length_scale = 0.1
    assert (gate.length_scale, twin.kl().item()) == (1.0, before)
    assert not any("length_scale" in name for name in gate.state_dict())
    assert gate.double().length_scale_tensor.dtype == torch.float64
