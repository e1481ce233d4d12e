import pytest
from torch import nn

from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates, require_gates
from bayesprune.gates.beta_bernoulli import BetaBernoulli


def test_gates_come_in_network_order_by_name():
    model = nn.Sequential(BetaBernoulli(1), nn.Sequential(nn.ReLU(), BetaBernoulli(2)), BetaBernoulli(3))
    assert list(gates(model)) == ["0", "1.1", "2"]
    model[0].position, model[1][1].position, model[2].position = 2, 0, 1
    assert [gate.num_units for gate in gates(model).values()] == [2, 3, 1]


def test_a_shared_gate_is_counted_once():
    gate = BetaBernoulli(1)
    assert len(gates(nn.Sequential(gate, nn.ReLU(), gate))) == 1


def test_a_gate_is_a_model_with_one_gate():
    gate = BetaBernoulli(1)
    assert gates(gate) == {"": gate}


def test_a_model_without_gates():
    assert gates(nn.Linear(2, 2)) == {}
    with pytest.raises(InputError, match=r"Linear has no gates.*sparsify"):
        require_gates(nn.Linear(2, 2))


def test_all_published_methods_are_there():
    assert set(METHODS) >= {"bb", "dbb", "sbp", "vib", "l0", "gd", "cd"}
