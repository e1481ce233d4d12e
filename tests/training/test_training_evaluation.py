import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.data import Split, TensorBatches
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.models import LeNet500300
from bayesprune.training.evaluation import evaluate, measure_members, measure_size
from bayesprune.training.members import Members

PRUNED = -50.0
"""A raw a at which E[pi] is far below any threshold."""


class Batches:
    """Batches as they are given."""

    def __init__(self, *batches):
        self.batches = batches

    def in_order(self):
        return iter(self.batches)


def prune(model, kept):
    for gate, count in zip(gates(model).values(), kept, strict=True):
        with torch.no_grad():
            gate.raw_a.fill_(2.0)
            gate.raw_a[count:] = PRUNED
    return model


def test_error_in_percent():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    found = evaluate(nn.Identity(), Batches((outputs, torch.tensor([0, 1, 1])), (outputs[:1], torch.tensor([1]))), F.cross_entropy)
    assert found.error == 50.0
    assert found.loss == pytest.approx(F.cross_entropy(outputs[[0, 1, 2, 0]], torch.tensor([0, 1, 1, 1])).item())
    assert found.used == []


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.ones(4, 1), torch.zeros(4, 1)),
        (torch.ones(4), torch.zeros(4)),
        (torch.ones(4, 3), torch.zeros(4, 3)),
        (torch.ones(4, 3, 5), torch.zeros(4, 3, 5)),
    ],
)
def test_no_error_where_nothing_is_classified(outputs, targets):
    found = evaluate(nn.Identity(), Batches((outputs, targets)), F.mse_loss)
    assert found.error is None
    assert found.loss == pytest.approx(1.0)


def test_batches_on_the_device(make_network):
    torch.manual_seed(0)
    split = Split(torch.randint(0, 256, (30, 1, 2, 4), dtype=torch.uint8), torch.arange(30) % 3)
    model = nn.Sequential(nn.Flatten(), make_network())
    found = evaluate(model, TensorBatches(split, (0.0,), (1.0,), batch_size=7), F.cross_entropy)
    model.eval()
    outputs = model(split.images / 255)
    assert found.error == pytest.approx(100 * (outputs.argmax(1) != split.labels).float().mean().item())
    assert found.loss == pytest.approx(F.cross_entropy(outputs, split.labels).item())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_as_it_was(make_network, make_source, method, training):
    model = make_network(method)
    model.train(training)
    model[1].train(not training)
    next(iter(gates(model).values())).sampling = True
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    switches = [gate.sampling for gate in gates(model).values()]
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    first, second = (evaluate(model, make_source(shuffle=False), F.cross_entropy) for _ in range(2))
    assert first == second
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [gate.sampling for gate in gates(model).values()] == switches
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


def test_hooks_go_when_evaluation_fails(make_network):
    model = make_network("bb")
    with pytest.raises(InputError):
        evaluate(model, Batches((torch.ones(2, 5), torch.zeros(2).long())), F.cross_entropy)
    assert not any(gate._forward_pre_hooks for gate in gates(model).values())
    assert model.training


def test_units_that_static_gates_keep(make_network, make_source):
    model = prune(make_network("bb"), (5, 12, 1))
    assert evaluate(model, make_source(count=50), F.cross_entropy).used == [5, 12, 1]


def test_units_that_samples_use():
    """E[z | x] = E[pi] phi(x) with phi = clamp(scale (x - mean) / sqrt(var + eps) + shift), counted where above the threshold."""
    torch.manual_seed(0)
    inputs = torch.randn(23, 6)
    plain = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    model = make_dependent(prune(sparsify(plain, "bb", example_inputs=inputs), (4, 3)))
    with torch.no_grad():
        for gate in gates(model).values():
            gate.shift.copy_(0.2 * torch.randn(gate.num_units))
            gate.scale.copy_(1.0 + 0.3 * torch.randn(gate.num_units))
            gate.running_mean.copy_(0.1 * torch.randn(gate.num_units))
            gate.running_var.copy_(0.5 + torch.rand(gate.num_units))
    first, second = gates(model).values()

    def used_and_mask(gate, x, static):
        pi = torch.nn.functional.softplus(torch.tensor(2.0))
        pi = pi / (1 + pi)  # E[pi] of Kumaraswamy(a, b = 1)
        phi = gate.scale * (x - gate.running_mean) / (gate.running_var + 1e-5).sqrt() + gate.shift
        mask = pi * phi.clamp(1e-10, 1 - 1e-10) * (torch.arange(gate.num_units) < static)
        kept = mask > 1e-3
        return kept.sum() / len(x), mask * kept

    with torch.no_grad():
        used, mask = used_and_mask(first, inputs, 4)
        hidden = torch.relu(model[0].weight @ (inputs * mask).T + model[0].bias[:, None]).T
        used_hidden, _ = used_and_mask(second, hidden, 3)
    assert 0 < used < 4
    assert 0 < used_hidden < 3
    targets = torch.zeros(23).long()
    for cut in (23, 16, 22):
        batches = [(x, y) for x, y in zip(inputs.split([cut, 23 - cut]), targets.split([cut, 23 - cut]), strict=True) if len(x)]
        found = evaluate(model, Batches(*batches), F.cross_entropy)
        assert found.used == pytest.approx([used.item(), used_hidden.item()], abs=1e-5)


def test_size_of_a_dense_network():
    size = measure_size(LeNet500300(), [], [])
    assert (size.kept, size.speedup, size.memory) == ([784, 500, 300], 1.0, 100.0)
    assert size.macs == 784 * 500 + 500 * 300 + 300 * 10
    assert size.parameters == 785 * 500 + 501 * 300 + 301 * 10


def test_size_of_a_pruned_network():
    """The paper's row of BB on LeNet-500-300."""
    size = measure_size(prune(sparsify(LeNet500300(), "bb"), (518, 187, 135)), [518, 187, 135], [518.0, 187.0, 135.0])
    assert size.kept == [518, 187, 135]
    assert all(isinstance(units, int) for units in size.kept)
    assert round(size.speedup, 2) == 4.41
    assert round(size.memory, 2) == 22.68
    assert size.macs == 518 * 187 + 187 * 135 + 135 * 10


def test_size_of_a_dependent_network():
    """Every layer computes its kept outputs from the inputs in use; 5 FLOPs and 4 floats for each kept unit's own gate."""
    kept, used = (518, 187, 135), (120.7, 60.25, 40.123456)
    size = measure_size(make_dependent(prune(sparsify(LeNet500300(), "bb"), kept)), list(kept), list(used))
    assert size.kept == [120.7, 60.25, 40.123]
    dense_flops = 500 * (2 * 784 + 1) + 300 * (2 * 500 + 1) + 10 * (2 * 300)
    flops = 187 * (2 * 120 + 1) + 135 * (2 * 60 + 1) + 10 * (2 * 40 + 1) + 5 * sum(kept)
    assert size.speedup == pytest.approx(dense_flops / flops)
    dense_memory = 784 * 500 + 500 + 500 * 300 + 300 + 300 * 10 + 10
    memory = 120 * 187 + 187 + 60 * 135 + 135 + 40 * 10 + 10 + 4 * sum(kept)
    assert size.memory == pytest.approx(100 * memory / dense_memory)
    assert size.macs == round(used[0] * 187 + used[1] * 135 + used[2] * 10)
    assert size.parameters == 519 * 187 + 188 * 135 + 136 * 10 + 2 * sum(kept)


def test_size_of_a_model_that_does_not_state_its_layers(make_network):
    assert measure_size(make_network(), [], []).kept == []
    size = measure_size(prune(make_network("bb"), (5, 12, 1)), [5, 12, 1], [5.0, 12.0, 1.0])
    assert (size.kept, size.speedup, size.memory, size.macs, size.parameters) == ([5, 12, 1], None, None, None, None)


def test_size_with_some_places_left_out():
    size = measure_size(sparsify(LeNet500300(), "bb", include=["fc2"]), [500], [500.0])
    assert (size.kept, size.speedup) == ([500], None)


MEASURED = {"error", "kept", "speedup", "memory", "macs", "parameters"}


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_members_are_measured_as_each_alone(dependent, count):
    torch.manual_seed(0)
    kept = [(500, 100, 50), (784, 500, 300), (3, 0, 7)][:count]
    models = [prune(sparsify(LeNet500300(), "bb"), units) for units in kept]
    if dependent:
        models = [make_dependent(model) for model in models]
        for model in models:
            for gate in gates(model).values():
                torch.nn.init.normal_(gate.shift, 0.0, 0.5)
    batches = Batches((torch.rand(7, 1, 28, 28), torch.arange(7)), (torch.rand(5, 1, 28, 28), torch.arange(5)))
    found = measure_members(Members(models), batches, F.cross_entropy)
    for model, units, measured in zip(models, kept, found, strict=True):
        alone = evaluate(model, batches, F.cross_entropy)
        size = measure_size(model, list(units), alone.used)
        assert set(measured) == MEASURED
        assert measured["error"] == pytest.approx(alone.error)
        assert measured["kept"] == pytest.approx(size.kept, abs=2e-3)
        assert (measured["speedup"], measured["memory"]) == (pytest.approx(size.speedup, rel=1e-3), pytest.approx(size.memory, rel=1e-3))
        if not dependent:
            assert measured["kept"] == list(units)
    assert all(module.training for model in models for module in model.modules())


def test_without_batches_input_dependent_gates_count_as_static_ones():
    models = [make_dependent(prune(sparsify(LeNet500300(), "bb"), (500, 100, 50 + extra))) for extra in range(2)]
    first, second = measure_members(Members(models), None, F.cross_entropy)
    assert (first["error"], first["kept"], second["kept"]) == (None, [500, 100, 50], [500, 100, 51])
    assert second["macs"] - first["macs"] == 100 + 10


def test_networks_without_gates_are_measured(make_network, make_source):
    (found,) = measure_members(Members([LeNet500300()]), None, F.cross_entropy)
    assert (found["kept"], found["speedup"], found["memory"], found["error"]) == ([784, 500, 300], 1.0, 100.0, None)
    found = measure_members(Members([make_network(seed=seed) for seed in range(2)]), make_source(), F.cross_entropy)
    assert [each["kept"] for each in found] == [[], []]
    assert [each["speedup"] for each in found] == [None, None]
    assert all(0 <= each["error"] <= 100 for each in found)
