"""Examples whose tensors are the same memory: tracers and exporters take them for one, and what they find is wrong elsewhere."""

import pytest
import torch
from own_models import TwoInputs
from torch import nn

import bayesprune as bp
from bayesprune.errors import InputError
from bayesprune.example_inputs import with_other_values, with_own_memory
from bayesprune.graph import trace


class Two(TwoInputs):
    def forward(self, x, y):
        assert len(x) == len(y)  # Which torch.fx cannot follow.
        return super().forward(x, y)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, x, y):
        assert len(x) == len(y)
        return self.a(x).sum(1) - self.b(y).sum(1)


class Anchored(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("anchor", torch.randn(3, 6))
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        assert len(x) > 0
        return self.fc(x).relu() - self.fc(self.anchor).sum(0)


X, Y = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
LONG = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
FORMS = {
    "the same tensor": (X, X),
    "by name": {"x": X, "y": X},
    "a view of it": (X, X[:]),
    "overlapping": (LONG[:, :6], LONG[:, 3:9]),
}


@pytest.mark.parametrize("form", FORMS)
def test_graph(form):
    model = Two().eval()
    graph = trace(model, FORMS[form])
    assert graph.meta["tracer"] == "torch.export"
    torch.testing.assert_close(graph(X, Y), model(X, Y))


def test_whole_numbers():
    model, (x, y) = Tokens().eval(), torch.randint(9, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(trace(model, (x, x))(x, y), model(x, y))


def test_an_example_that_the_model_holds_too():
    model = Anchored().eval()
    torch.testing.assert_close(trace(model, model.anchor)(X), model(X))


def test_saved(tmp_path):
    model = Two().eval()
    bp.save(model, tmp_path / "two", example_inputs=(X, X))
    torch.testing.assert_close(bp.load(tmp_path / "two")(X, Y), model(X, Y))


def test_compacted():
    gated = bp.sparsify(Two(), example_inputs=(X, X)).eval()
    for gate in bp.gates(gated).values():
        gate.raw_a.data[::2] = -15.0
    result = bp.compact(gated, (X, X))
    assert result.certificate.after.macs < result.certificate.before.macs
    torch.testing.assert_close(result.model(X, Y), gated(X, Y))


def test_numbers_that_a_graph_has_from_its_example_are_noticed_in_whole_numbers_too():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 2)

        def forward(self, x, lengths):
            return self.fc(x) * lengths.tolist()[0]

    with pytest.raises(InputError, match="cannot be followed"):
        trace(Cut(), (X, torch.tensor([5, 2, 9])))


def test_memory_of_their_own():
    inputs = with_own_memory({"x": X, "pair": [X, X.T], "flag": True})
    x, (first, second) = inputs["x"], inputs["pair"]
    assert len({each.untyped_storage().data_ptr() for each in (x, first, second, X)}) == 4
    assert torch.equal(x, X)
    assert torch.equal(second, X.T)
    assert inputs["flag"] is True
    assert not with_own_memory(X.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("tensor", [X, torch.arange(40).reshape(4, 10)], ids=["float", "int"])
def test_noise_of_their_own(tensor):
    first, second = with_other_values((tensor, tensor))
    assert not torch.equal(first, second)
    assert not torch.equal(first, tensor)
    assert all(torch.equal(a, b) for a, b in zip(with_other_values((tensor, tensor)), (first, second), strict=True))
    assert tensor.is_floating_point() or set(first.flatten().tolist()) <= set(tensor.flatten().tolist())
    assert tensor.is_floating_point() or torch.equal(with_other_values((tensor,), whole_numbers=False)[0], tensor)
