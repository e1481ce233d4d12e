import copy
import pickle

import pytest
import torch
from torch import nn

from bayesprune.attach import sparsify
from bayesprune.errors import InputError
from bayesprune.gates import gates, method_class
from bayesprune.gates.hooks import put_on
from bayesprune.gates.information_bottleneck import InformationBottleneck


def gate_of(values):
    gate = InformationBottleneck(len(values)).eval()
    with torch.no_grad():
        gate.mu.copy_(torch.tensor(values))
    return gate


def test_a_gate_multiplies_what_goes_in_or_what_comes_out():
    layer, x = nn.Linear(2, 3), torch.randn(4, 2)
    entering, leaving = torch.tensor([2.0, 3.0]), torch.tensor([1.0, -1.0, 0.5])
    expected = layer(x * entering) * leaving
    put_on(layer, "input", gate_of(entering.tolist()))
    put_on(layer, "output", gate_of(leaving.tolist()))
    torch.testing.assert_close(layer(x), expected)
    assert [name for name, _ in layer.named_children()] == ["input_gate", "output_gate"]


def test_a_copy_runs_its_own_gates():
    layer, x = nn.Linear(2, 3), torch.randn(4, 2)
    put_on(layer, "input", gate_of([1.0, 1.0]))
    before = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x), before)
        with torch.no_grad():
            twin.input_gate.mu.fill_(2.0)
        assert not torch.equal(twin(x), before)
        assert torch.equal(layer(x), before)


def test_replacing_the_child_replaces_the_gate():
    layer, x = nn.Linear(2, 3), torch.randn(4, 2)
    put_on(layer, "input", gate_of([1.0, 1.0]))
    layer.input_gate = gate_of([5.0, 5.0])
    torch.testing.assert_close(layer(x), nn.functional.linear(5 * x, layer.weight, layer.bias))


def test_a_second_gate_at_the_same_place_is_refused():
    layer = nn.Linear(2, 3)
    put_on(layer, "output", gate_of([1.0] * 3))
    with pytest.raises(InputError, match="'output_gate' already"):
        put_on(layer, "output", gate_of([1.0] * 3))
    assert len(layer._forward_hooks) == 1


def test_an_input_gate_needs_a_positional_argument():
    layer = nn.Linear(2, 3)
    put_on(layer, "input", gate_of([1.0] * 2))
    with pytest.raises(InputError, match="Linear with a gate on its input must be called with a positional argument"):
        layer(input=torch.zeros(1, 2))


def test_copies_of_a_gated_model_share_nothing():
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    gated = sparsify(plain, "cd", example_inputs=torch.zeros(2, 1, 4, 4))
    twin = copy.deepcopy(gated)
    assert not {p.data_ptr() for p in gated.parameters()} & {p.data_ptr() for p in twin.parameters()}
    assert list(gates(twin)) == list(gates(gated))
    before = [gate.kl().item() for gate in gates(gated).values()]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2.0)
    assert [gate.kl().item() for gate in gates(gated).values()] == before
    assert [gate.kl().item() for gate in gates(twin).values()] != before


@pytest.mark.parametrize("method", ["bb", "dbb", "vib"])
def test_a_sample_that_lost_its_batch_dimension(method):
    """A linear layer takes a vector, so a gate on its input does too."""
    layer = nn.Linear(5, 3)
    put_on(layer, "input", method_class(method)(5, channel_dim=-1))
    x = torch.randn(1, 5)
    torch.testing.assert_close(layer.eval()(x[0]), layer(x)[0])
    assert layer.train()(x[0]).shape == (3,)
