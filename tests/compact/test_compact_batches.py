"""Branches that are put behind each other along the batch, or whose parts are constant: what is left takes batches of any size."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.compact import compaction


class Branches(nn.Module):
    """Two branches of which pruned channels are zero in one and a half in the other."""

    def __init__(self, join):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.o = (nn.Conv2d(inputs, 8, 3, padding=1) for inputs in (3, 3, 8))
        self.ra, self.f, self.join = nn.ReLU(), nn.Linear(8, 2), join

    def forward(self, x):
        first, second = self.ra(self.a(x)), torch.sigmoid(self.b(x))
        if self.join == "cat":
            joined = torch.cat([first, second], 0)
        else:
            joined = torch.stack([first, second], 0 if self.join == "stack first" else 1).flatten(0, 1)
        return self.f(self.o(torch.cat([joined, joined * 2], 2)).mean((2, 3)))


def pruned(gated, units=(0, 1, 2, 5)):
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            if gate.num_units == 8:
                gate.raw_a[list(units)] = -15.0
    return gated.eval()


@pytest.mark.parametrize("join", ["cat", "stack first", "stack"])
@pytest.mark.parametrize("size", [2, 4])
def test_branches_along_the_batch(join, size):
    x = torch.randn(size, 3, 6, 6, dtype=torch.float64)
    gated = pruned(bp.sparsify(Branches(join).double().eval(), "bb", example_inputs=x))
    result = bp.compact(gated, x)
    for batch in (1, 3, size, 7):
        fresh = torch.randn(batch, 3, 6, 6, dtype=torch.float64)
        torch.testing.assert_close(result.model(fresh), gated(fresh))


class Positions(nn.Module):
    """Branches side by side along positions, constant where all their channels are pruned before a norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.n, self.m, self.f = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Linear(8, 2)
        nn.init.normal_(self.n.bias)
        nn.init.normal_(self.m.bias)

    def forward(self, x):
        return self.f(torch.cat([F.relu(self.n(self.a(x))), F.gelu(self.m(self.b(x)))], 3).mean((2, 3)))


@pytest.mark.parametrize("units", [range(8), (0, 3)])
def test_branches_that_are_constant(units):
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    gated = pruned(bp.sparsify(Positions().double().eval(), "bb", example_inputs=x, before_norm=True), units)
    result = bp.compact(gated, x)
    fresh = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh))


@pytest.mark.filterwarnings("ignore:nothing was removed")
def test_a_network_for_one_size_of_batches_is_not_certified(monkeypatch):
    x = torch.randn(2, 6)
    gated = bp.sparsify(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), "bb", example_inputs=x)
    shrink, given = compaction.shrink, []

    def for_two_alone(module, *rigid):
        small, analysis = shrink(module, *rigid)
        if not given:
            forward = small.forward
            small.forward = lambda each: forward(each.view(2, 6))
        given.append(small)
        return small, analysis

    monkeypatch.setattr(compaction, "shrink", for_two_alone)
    assert "nothing was removed" in bp.compact(pruned(gated), x).certificate.note
    assert len(given) == 2
