import math

import pytest
import torch
from torch import nn

from bayesprune.gates.hard_concrete import HardConcrete

PRICE, PRECISION = 0.3, 2.0


def gate_with(log_alpha, **arguments):
    gate = HardConcrete(len(log_alpha), price=PRICE, precision=PRECISION, **arguments)
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor(log_alpha))
    return gate


def probability(log_alpha):
    p = 1 / (1 + math.exp(-(log_alpha - 2 / 3 * math.log(0.1 / 1.1))))
    return min(max(p, 1e-6), 1 - 1e-6)


def by_hand_inputs(layer, log_alpha, owner=None):
    """P_i sum_j (precision/2 w_ij^2 + price) + precision/2 ||bias||^2, weight by weight."""
    total = 0.0
    for j in range(layer.weight.shape[0]):
        for i in range(layer.weight.shape[1]):
            squares, count = layer.weight[j, i].square().sum().item(), layer.weight[j, i].numel()
            total += probability(log_alpha[owner[i] if owner else i]) * (0.5 * PRECISION * squares + PRICE * count)
    if layer.bias is not None:
        total += 0.5 * PRECISION * layer.bias.square().sum().item()
    return total


def by_hand_outputs(layer, log_alpha, owner=None):
    """P_k [sum over the filter's weights (precision/2 w^2 + price) + precision/2 b_k^2 + price], the bias being one more weight."""
    total = 0.0
    for k in range(layer.weight.shape[0]):
        weights = layer.weight[k].flatten().tolist() + ([layer.bias[k].item()] if layer.bias is not None else [])
        total += probability(log_alpha[owner[k] if owner else k]) * sum(0.5 * PRECISION * w * w + PRICE for w in weights)
    return total


LAYERS = [nn.Linear(3, 4), nn.Linear(3, 4, bias=False), nn.Conv2d(3, 4, 5), nn.Conv1d(3, 4, 2, bias=False)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_penalty_on_inputs(layer):
    log_alpha = [-3.0, 0.0, 4.0]
    gate = gate_with(log_alpha)
    gate.control(layer, "inputs")
    assert gate.kl().item() == pytest.approx(by_hand_inputs(layer, log_alpha), rel=1e-5)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_penalty_on_outputs(layer):
    log_alpha = [-3.0, 0.0, 4.0, 1.0]
    gate = gate_with(log_alpha)
    gate.control(layer, "outputs")
    assert gate.kl().item() == pytest.approx(by_hand_outputs(layer, log_alpha), rel=1e-5)


def test_penalty_with_shared_units():
    log_alpha, owner, layer = [-1.0, 2.0], [0, 1, 0], nn.Linear(3, 4)
    gate = gate_with(log_alpha, groups=torch.tensor(owner))
    gate.control(layer, "inputs")
    assert gate.kl().item() == pytest.approx(by_hand_inputs(layer, log_alpha, owner), rel=1e-5)


def test_penalty_over_several_layers_adds_up():
    log_alpha, first, second = [-1.0, 2.0, 0.5], nn.Conv2d(2, 3, 3), nn.Linear(3, 4)
    gate = gate_with(log_alpha)
    gate.control(first, "outputs")
    gate.control(second, "inputs")
    assert gate.kl().item() == pytest.approx(by_hand_outputs(first, log_alpha) + by_hand_inputs(second, log_alpha), rel=1e-5)


def test_penalty_where_units_cover_the_elements_of_a_sample():
    """A tensor of groups over a sample, and the linear layer that reads the sample flattened: an input for each element."""
    log_alpha, owner, layer = [-1.0, 2.0], [[0, 1, 0], [1, 1, 0]], nn.Linear(6, 4)
    gate = gate_with(log_alpha, groups=torch.tensor(owner))
    gate.control(layer, "inputs")
    assert gate.kl().item() == pytest.approx(by_hand_inputs(layer, log_alpha, [unit for row in owner for unit in row]), rel=1e-5)


def test_penalty_follows_the_weights():
    layer = nn.Linear(3, 4)
    gate = gate_with([0.0, 1.0, 2.0])
    gate.control(layer, "inputs")
    (slope,) = torch.autograd.grad(gate.kl(), layer.weight)
    expected = torch.tensor([[probability(value) for value in (0.0, 1.0, 2.0)]]) * PRECISION * layer.weight
    torch.testing.assert_close(slope, expected.detach())


def test_zero_and_one_at_the_published_edges():
    gate = gate_with([-2.399, -2.397, 2.397, 2.399])
    mask = gate.mean_mask(torch.zeros(1, 4))
    assert mask[0] == 0.0
    assert 0.0 < mask[1] < mask[2] < 1.0
    assert mask[3] == 1.0
    assert gate.keep().tolist() == [False, True, True, True]


def test_frequency_of_gates_that_are_not_zero():
    torch.manual_seed(0)
    units = 40_000
    gate = gate_with([-1.0] * units).train()
    frequency = (gate(torch.ones(2, units))[0] > 0).float().mean().item()
    p = gate.keep_probability()[0].item()
    assert p == pytest.approx(probability(-1.0), rel=1e-5)
    assert abs(frequency - p) < 5 * math.sqrt(p * (1 - p) / units)


@pytest.mark.parametrize(("keep_init", "rate"), [(0.0, 0.5), (math.log(4.0), 0.2)])
def test_starts_around_a_dropout_rate(keep_init, rate):
    torch.manual_seed(0)
    gate = HardConcrete(10_000, keep_init=keep_init)
    assert set(gate.state_dict()) == {"log_alpha"}
    assert keep_init == pytest.approx(math.log((1 - rate) / rate))
    assert abs(gate.log_alpha.mean().item() - keep_init) < 5 * 0.01 / 100
    assert gate.log_alpha.std().item() == pytest.approx(0.01, rel=0.05)


def test_what_training_it_needs():
    assert HardConcrete.gate_lr_factor == 1.0
    assert HardConcrete.penalises_weights
