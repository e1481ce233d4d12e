"""Code that assigns into tensors, or calls programs of its own, is followed like any other."""

import warnings

import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.errors import InputError
from bayesprune.graph import trace


class Biased(nn.Module):
    """Adds a bias to a sequence that some code makes from its size, in a way that only ``torch.export`` follows."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.dropout, self.make = nn.Linear(6, 8), nn.Linear(8, 4), nn.Dropout(0.5), make
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        bias = self.make(self, x)
        if x.shape[1] > 100:  # Which torch.fx does not get past.
            bias = bias * 0
        return self.fc2(self.dropout(torch.relu(self.fc1(x)) + bias[:, None]))


def assigned(_, x):
    bias = torch.zeros(x.shape[1], dtype=x.dtype)
    bias[1:] = 1.0
    bias[0] = x.shape[1]
    return bias


def written_through_a_view(_, x):
    bias = torch.ones(x.shape[1], 2, dtype=x.dtype)
    bias[:, 1].mul_(3.0)
    return bias.sum(dim=1)


def from_a_number(_, x):
    return torch.arange(x.shape[1]) + torch.tensor(2.0, dtype=x.dtype)


def without_gradients(_, x):
    with torch.no_grad():
        return torch.arange(x.shape[1]).to(x.dtype) * 0.1


def without_autocast(_, x):
    with torch.autocast("cpu", enabled=False):
        return torch.arange(x.shape[1]).to(x.dtype) * 0.1


def vectorised(_, x):
    return torch.vmap(lambda i: torch.where(i > 2, i, 2 * i))(torch.arange(x.shape[1])).to(x.dtype)


def with_an_unused_draw(model, x):
    skipped = model.training and bool(torch.rand([]) < 0.5)
    return torch.ones(x.shape[1], dtype=x.dtype) * (not skipped)


def counting(model, x):
    model.calls += 1
    return torch.ones(x.shape[1], dtype=x.dtype)


WAYS = [
    assigned, written_through_a_view, from_a_number, without_gradients, without_autocast, vectorised, with_an_unused_draw, counting
]  # fmt: skip


@pytest.mark.parametrize("make", WAYS)
def test_what_torch_export_shows_in_other_words(make, tmp_path):
    model = Biased(make).double().eval()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    graph = trace(model, x)
    assert graph.meta["tracer"] == "torch.export"
    assert not graph.meta.get("only_size")
    for other in (torch.randn(2, 7, 6, dtype=torch.float64), torch.randn(4, 3, 6, dtype=torch.float64)):
        torch.testing.assert_close(graph(other), model(other))

    gated = bp.sparsify(model, "bb", example_inputs=x)
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a[::2] = -15
    small = bp.compact(gated.eval(), example_inputs=x).model
    bp.save(small, tmp_path / "small.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(small(x), gated(x))
        torch.testing.assert_close(bp.load(tmp_path / "small.safetensors")(x), small(x))


@pytest.mark.parametrize("make", [assigned, vectorised])
def test_dropout_is_still_there_in_training(make):
    graph = trace(Biased(make), torch.randn(3, 5, 6))
    assert [module.p for module in graph.modules() if isinstance(module, nn.Dropout)] == [0.5]


def noisy(kind):
    def make(_, x):
        bias = torch.empty(x.shape[1], dtype=x.dtype)
        return 1e-12 * getattr(bias, kind)()  # Too little for a difference between two calls to show.

    return make


@pytest.mark.parametrize("kind", ["uniform_", "normal_", "exponential_"])
def test_numbers_that_are_drawn_into_a_tensor(kind):
    with pytest.raises(InputError, match=f"draws random numbers with {kind.removesuffix('_')}"):
        trace(Biased(noisy(kind)).eval(), torch.randn(2, 5, 6))


def test_nobody_is_told_of_what_torch_gives_up():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(Biased(assigned).eval(), torch.randn(2, 5, 6))
