import pytest
import torch

from bayesprune.analysis import class_averages, likeness, record_units
from bayesprune.attach import make_dependent, sparsify
from bayesprune.gates import gates
from bayesprune.models import LeNet500300


@pytest.fixture
def model():
    torch.manual_seed(0)
    found = make_dependent(sparsify(LeNet500300(10, (20, 12)), "bb", keep_init=1.0), shift_init=0.1).eval()
    for gate in gates(found).values():
        gate.prune(torch.arange(0, gate.num_units, 3))
        gate.running_mean.normal_(0.3, 0.5)
        gate.running_var.fill_(0.5)
    return found


@pytest.fixture
def batches():
    random = torch.Generator().manual_seed(1)
    inputs, labels = torch.rand(30, 1, 28, 28, generator=random), torch.arange(30) % 3
    return [(inputs[:20], labels[:20]), (inputs[20:], labels[20:])]


def test_uses_are_what_the_gates_let_through(model, batches):
    record = record_units(model, batches, 3, [2, 0], [1, 3], 4)
    assert record.labels.tolist() == [2] * 4 + [0] * 4
    first, _, last = gates(model)
    assert list(record.uses) == [first, last]
    inputs = torch.cat([torch.cat([x[y == each] for x, y in batches])[:4] for each in (2, 0)])
    masks = {}
    hooks = [
        gate.register_forward_pre_hook(lambda gate, given, name=name: masks.update({name: gate.mean_mask(given[0])}))
        for name, gate in gates(model).items()
    ]
    model(inputs)
    for hook in hooks:
        hook.remove()
    for name, uses in record.uses.items():
        kept = gates(model)[name].keep()
        torch.testing.assert_close(uses, masks[name].flatten(1)[:, kept], rtol=1e-5, atol=1e-7)
        assert bool((uses == 0).any())
        assert bool((uses > 0).any())
    for name, averages in class_averages(model, batches, 3).items():
        assert torch.equal(record.averages[name].phi, averages.phi)


def test_classes_and_layers_that_are_not_there(model, batches):
    record = record_units(model, batches, 12, [11], [1, 9], 4)
    assert (record.labels.tolist(), record.uses) == ([], {})
    assert len(record.averages) == 3


def test_likeness_is_the_share_of_common_units():
    uses = torch.tensor([[0.5, 0.2, 0.0, 0.0], [0.5, 0.0, 0.3, 0.0], [0.0, 0.0, 0.1, 0.9]])
    labels = torch.tensor([4, 4, 7])
    assert likeness(uses, labels, 4, 4) == pytest.approx(1 / 3)
    assert likeness(uses, labels, 4, 7) == pytest.approx((0 / 4 + 1 / 3) / 2)
    assert likeness(uses, labels, 7, 7) is None, "no two inputs"
    assert likeness(torch.zeros(3, 4), labels, 4, 4) is None, "no unit is used"
    assert likeness(torch.zeros(3, 0), labels, 4, 7) is None
