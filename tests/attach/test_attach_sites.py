"""Modules of the user's in which a layer is called among other things: gates go where their units really are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp


class Adapted(nn.Linear):
    """A linear layer and a correction of low rank, as adapters have it."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + (x @ self.down.T) @ self.up.T


class Residual(nn.Module):
    """Adds to what it is given, so that its output is the stream and not the layer's output."""

    def __init__(self, inputs, _outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, inputs) / 4)

    def forward(self, x):
        return x + F.linear(x, self.weight)


class Hidden(nn.Module):
    """Reads hidden units with the weight that bears the usual name."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.weight = nn.Parameter(torch.randn(7, inputs) / 4), nn.Parameter(torch.randn(outputs, 7) / 4)

    def forward(self, x):
        return F.linear(torch.relu(F.linear(x, self.first)), self.weight)


def pruned(model, x):
    gated = bp.sparsify(model, "bb", example_inputs=x).eval()
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a[::2] = -15
    result = bp.compact(gated, x)
    with torch.no_grad():
        torch.testing.assert_close(result.model(x), gated(x))
    return gated, result.certificate


@pytest.mark.parametrize("kind", [Adapted, Residual, Hidden])
@pytest.mark.parametrize("norm", [nn.Identity, nn.LayerNorm])
def test_units_of_every_gate_leave(kind, norm):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    layers = nn.Linear(6, 8), nn.ReLU(), kind(8, 8), *([norm(8)] if norm is nn.LayerNorm else []), nn.ReLU(), nn.Linear(8, 3)
    _, certificate = pruned(nn.Sequential(*layers).double().eval(), x)
    assert all(outcome.stayed == 0 for outcome in certificate.gates.values())
    assert certificate.after.parameters < certificate.before.parameters


def test_an_adapted_layer_is_used_in_one_place():
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    gated, _ = pruned(nn.Sequential(Adapted(6, 8), nn.ReLU(), Adapted(8, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval(), x)
    assert set(bp.gates(gated)) == {"0.input_gate", "0.output_gate", "2.output_gate"}


class Low(nn.Module):
    """A layer and an adapter of low rank, whose second factor starts at zero."""

    def __init__(self, zero):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(6, 8), nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(8, 2))
        if zero:
            nn.init.zeros_(self.up)

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_adapters_that_start_at_zero_get_the_gates_of_trained_ones():
    torch.manual_seed(0)
    x = torch.randn(3, 6)
    found = []
    for zero in (True, False):
        model = nn.Sequential(Low(zero), nn.LayerNorm(8), nn.Linear(8, 2))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found.append(list(bp.gates(bp.sparsify(model, "bb", example_inputs=x))))
        assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert found[0] == found[1]


class Written(nn.Module):
    """The caller writes into what a module of its own returns."""

    def __init__(self, in_place):
        super().__init__()
        self.low, self.last, self.in_place = Low(False), nn.Linear(8, 2), in_place

    def forward(self, x):
        h = self.low(x)
        if self.in_place:
            h += 1.0
        else:
            h = h + 1.0
        return self.last(torch.relu(h))


def test_who_writes_into_a_result_does_not_move_its_gate():
    torch.manual_seed(0)
    x = torch.randn(3, 6)
    first, second = (list(bp.gates(bp.sparsify(Written(in_place), "bb", example_inputs=x))) for in_place in (True, False))
    assert first == second
