import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.cost import relative_cost
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.models import LeNet500300
from bayesprune.summary import summary


def lenet():
    return LeNet500300(widths=(6, 5), input_shape=(1, 3, 3))


def prune(gated, kept):
    with torch.no_grad():
        for gate, count in zip(gates(gated).values(), kept, strict=True):
            gate.raw_a[count:] = -9.0
    return gated


@pytest.mark.parametrize("method", sorted(METHODS))
def test_it_states_what_the_gates_say(method):
    gated = sparsify(lenet(), method)
    found = summary(gated)
    assert [row.name for row in found.gates] == list(gates(gated))
    assert [row.units for row in found.gates] == [9, 6, 5]
    assert [row.kept for row in found.gates] == [int(gate.keep().sum()) for gate in gates(gated).values()]
    assert [row.kl for row in found.gates] == pytest.approx([gate.kl().item() for gate in gates(gated).values()])
    assert found.kl == pytest.approx(sum(row.kl for row in found.gates))
    assert found.units == 20


def test_pruned_units_lower_the_count_and_the_cost():
    gated = prune(sparsify(lenet(), "bb"), [4, 3, 2])
    found = summary(gated)
    assert [row.kept for row in found.gates] == [4, 3, 2]
    assert found.kept == 9
    assert found.cost == relative_cost(gated.layers(), [4, 3, 2])
    assert found.cost.speedup > summary(sparsify(lenet(), "bb")).cost.speedup == 1.0


def test_input_dependent_gates_count_with_all_that_bb_kept():
    gated = prune(sparsify(lenet(), "bb"), [4, 3, 2])
    assert summary(make_dependent(gated)).kept == 9


def test_no_cost_where_the_model_does_not_state_its_layers_or_not_all_places_are_gated():
    assert summary(sparsify(nn.Sequential(nn.Linear(3, 2)), "bb")).cost is None
    assert summary(sparsify(lenet(), "bb", exclude=["fc1"])).cost is None


def test_it_prints_as_a_table():
    text = str(summary(prune(sparsify(lenet(), "bb"), [4, 3, 2])))
    lines = text.splitlines()
    assert len(lines) == 6
    assert lines[0].split("  ")[0] == "gate"
    assert all(part in lines[0] for part in ("units kept", "KL divergence in nats"))
    assert lines[1].startswith("fc1.input_gate")
    assert "4 of 9" in lines[1]
    assert "all gates" in lines[4]
    assert "9 of 20" in lines[4]
    assert len({len(line) for line in lines[:5]}) == 1, "columns are aligned"
    assert lines[5].startswith("without the pruned units: ")
    assert "x fewer FLOPs" in lines[5]
    assert "% of the memory" in lines[5]


def test_asking_does_not_disturb_training():
    gated = sparsify(lenet(), "bb").train()
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    summary(gated)
    assert gated.training
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())


def test_no_gates():
    with pytest.raises(InputError, match="no gates"):
        summary(lenet())
