import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.compact import compact
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


def own_network():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 3))


def test_any_model_says_what_compaction_would_leave():
    x = torch.randn(2, 1, 8, 8)
    gated = prune(sparsify(own_network(), "bb", example_inputs=x), [4, 100, 8]).train()
    before = {name: tensor.clone() for name, tensor in gated.state_dict().items()}
    found = summary(gated, x)
    certificate = compact(gated, x).certificate
    assert found.reduction == certificate.after.relative_to(certificate.before)
    assert found.reduction.macs > 2
    assert str(found.reduction) in str(found)
    assert gated.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in gated.state_dict().items())
    assert summary(gated).reduction is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", [0, 300])
def test_all_and_nothing_are_shown_without_warnings(kept):
    x = torch.randn(2, 1, 8, 8)
    reduction = summary(prune(sparsify(own_network(), "bb", example_inputs=x), [kept] * 3), x).reduction
    assert (reduction.macs == 1.0) == (kept > 0)


def test_an_example_that_does_not_fit_is_refused():
    gated = sparsify(own_network(), "bb", example_inputs=torch.randn(2, 1, 8, 8))
    with pytest.raises(InputError):
        summary(gated, torch.randn(2, 3, 8, 8))
