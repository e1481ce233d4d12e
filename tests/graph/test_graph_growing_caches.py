"""Models that keep what they computed for the longest input so far: they are followed as if that had been long."""

import pytest
import torch
import torch.nn.functional as F
from masking import prune_at_random
from torch import nn

import bayesprune as bp
from bayesprune.graph import trace


class Cached(nn.Module):
    """Something for every position, made anew where the input is longer than all before."""

    def __init__(self, there=0):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("table", self.made(there), persistent=False)

    def made(self, length):
        return torch.cos(torch.arange(length)[:, None] * torch.arange(1, 9)[None] * 0.1).double()

    def forward(self, x):
        if x.shape[1] > self.table.shape[0]:
            self.table = self.made(x.shape[1])
        return self.last(F.relu(self.first(x)) * self.table[: x.shape[1]])


class Causal(Cached):
    """The same with a matrix, which is registered anew."""

    def made(self, length):
        return torch.ones(length, length).tril().double()

    def forward(self, x):
        length = x.shape[1]
        if length > self.table.shape[0]:
            self.register_buffer("table", self.made(length), persistent=False)
        return self.last(self.table[:length, :length] @ F.relu(self.first(x)))


@pytest.mark.filterwarnings("ignore::bayesprune.BayespruneWarning")
@pytest.mark.parametrize("there", [0, 4, 9], ids=["empty", "shorter than the example", "longer than the example"])
@pytest.mark.parametrize("kind", [Cached, Causal])
def test_a_cache_that_grows(kind, there):
    torch.manual_seed(0)
    model = kind(there).double().eval()
    x = torch.rand(2, 5, 6, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(model, "bb", example_inputs=x).eval(), 0.4)
    assert model.table.shape[0] == there
    result = bp.compact(gated, x)
    assert gated.table.shape[0] == there
    assert result.certificate.note.startswith("it is for inputs of at most 10 along dimension 1: ")
    assert result.certificate.after.parameters < result.certificate.before.parameters
    with torch.no_grad():
        for length in (2, 5, 10):
            inputs = torch.rand(3, length, 6, dtype=torch.float64)
            assert torch.allclose(gated(inputs), result.model(inputs), rtol=1e-12, atol=1e-13)


def test_the_model_is_as_it_was():
    model = Cached().double().eval()
    graph = trace(model, torch.rand(2, 5, 6, dtype=torch.float64))
    assert not graph.meta["only_size"]
    assert model.table.shape == (0, 8)


def test_a_cache_of_earlier_inputs_is_refused():
    class Earlier(Cached):
        """What it computes goes by the longest input so far."""

        def forward(self, x):
            h = F.relu(self.first(x))
            self.table[: x.shape[1]] = h.mean(0)
            return self.last(h + self.table.mean(0))

    with pytest.raises(bp.BayespruneError, match="goes by what it wrote into table"):
        trace(Earlier(64).double().eval(), torch.rand(2, 5, 6, dtype=torch.float64))


class OfAllRows(Cached):
    """Something for every position of every input of the batch."""

    def forward(self, x):
        rows = x.shape[0] * x.shape[1]
        if rows > self.table.shape[0]:
            self.table = self.made(rows)
        h = F.relu(self.first(x))
        return self.last(h * self.table[:rows].view(h.shape))


class MadeOnce(Cached):
    """More than anyone needs, made at the first call."""

    def forward(self, x):
        if self.table.shape[0] == 0:
            self.table = self.made(512)
        return self.last(F.relu(self.first(x)) * self.table[: x.shape[1]])


class OfTwo(Cached):
    def forward(self, x, weights):
        return super().forward(x) * weights


@pytest.mark.parametrize(
    ("kind", "weights", "limits"),
    [
        (Cached, False, ("10 along dimension 1",)),
        (OfTwo, True, ("10 along dimension 1 of input 1",)),
        (OfAllRows, False, ("3 along dimension 0", "5 along dimension 1", "6 along dimension 2")),
        (MadeOnce, False, ()),
    ],
)
def test_only_sizes_that_matter_are_limited(kind, weights, limits):
    torch.manual_seed(0)
    x = torch.rand(3, 5, 6, dtype=torch.float64)
    model = kind().double().eval()
    graph = trace(model, (x, torch.rand(3, 1, 1, dtype=torch.float64)) if weights else x)
    assert graph.meta["at_most"] == limits
