"""Models whose code has branches on the size of the batch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.graph.batch_limits import BatchLimits

BRANCHES = {
    "centred": lambda x, y: y - y.mean(0) if x.shape[0] > 1 else y,
    "squeezed": lambda x, y: y.squeeze(0) if x.shape[0] == 1 else y,
    "other function": lambda x, y: y.softmax(-1) if x.shape[0] == 1 else y.log_softmax(-1),
    "many": lambda x, y: 2 * y if x.shape[0] > 16 else y,
}


class Branching(nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.branch = BRANCHES[branch]
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.branch(x, self.c(F.relu(self.b(F.relu(self.a(x))))))


def compacted(model, x, every=3):
    gated = bp.sparsify(model.eval(), "bb", example_inputs=x).eval()
    for gate in bp.gates(gated).values():
        gate.prune(torch.arange(gate.num_units) % every == 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = bp.compact(gated, x)
    return gated, result, [str(each.message) for each in said]


def same(gated, small, size):
    x = torch.randn(size, 6)
    expected, got = gated(x), small(x)
    return expected.shape == got.shape and torch.allclose(expected, got, atol=1e-5)


@pytest.mark.parametrize("branch", ["centred", "squeezed", "other function"])
def test_a_branch_for_single_inputs_is_noticed(branch):
    gated, result, said = compacted(Branching(branch), torch.randn(4, 6))
    assert "for batches of at least 2 inputs" in result.certificate.note
    assert result.certificate.note in said
    assert all(same(gated, result.model, size) for size in (2, 5, 40))


@pytest.mark.parametrize("branch", ["centred", "squeezed", "other function"])
def test_with_a_single_input_as_the_example_the_network_is_for_such(branch):
    gated, result, _ = compacted(Branching(branch), torch.randn(1, 6))
    assert "for single inputs" in result.certificate.note
    assert same(gated, result.model, 1)
    assert result.kept["b.input_gate"] < 16


@pytest.mark.parametrize("size", [1, 4])
def test_a_branch_for_large_batches_is_noticed(size):
    gated, result, _ = compacted(Branching("many"), torch.randn(size, 6))
    assert "not for large batches" in result.certificate.note
    assert all(same(gated, result.model, each) for each in (1, 2, 5))


def test_without_branches_there_is_nothing_to_say():
    _, result, said = compacted(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(4, 6))
    assert not result.certificate.note
    assert not said


def test_constants_of_a_network_that_squeezes_are_for_several_inputs():
    class Squeezing(Branching):
        def forward(self, x):
            return self.c(F.relu(self.b(F.relu(self.a(x)).squeeze())))

    gated, result, _ = compacted(Squeezing("many"), torch.randn(4, 6), every=1)
    assert "for batches of at least 2 inputs" in result.certificate.note
    assert result.certificate.after.parameters < 10
    assert same(gated, result.model, 5)


@pytest.mark.parametrize(
    ("limits", "admitted", "words"),
    [
        (BatchLimits(), [1, 2, 100], ""),
        (BatchLimits(1, 2), [1], "for single inputs"),
        (BatchLimits(2), [2, 100], "for batches of at least 2 inputs"),
        (BatchLimits(2, 33), [2], "for batches of at least 2 inputs and not for large batches, such as of 33 inputs"),
    ],
)
def test_limits(limits, admitted, words):
    assert [size for size in (1, 2, 100) if limits.admit(size)] == admitted
    assert str(limits) == words
