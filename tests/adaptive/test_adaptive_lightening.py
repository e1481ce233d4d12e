"""What is computed once is what every call computed."""

import pytest
import torch
import torch.nn.functional as F
from per_input_networks import BOUNDS, adapt, difference, from_gallery, sparse
from torch import nn

import bayesprune as bp


class Constants(nn.Module):
    """Values that are known before an input comes: a tensor, numbers, and parts of a tensor."""

    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.randn(2, 6))
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        scale, shift = self.scales.chunk(2)
        x = x * torch.exp(scale) / self.scales.size(1) + shift
        return self.second(F.relu(self.first(x))) * self.scales.unbind(0)[0].sum()


def words(network):
    return [getattr(node.target, "__name__", node.target) for node in network.graph.nodes if node.op in ("call_function", "call_method")]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", ["lenet_500_300", "vgg", "lstm_tail", "vit_own", "squeeze_excitation"])
def test_the_light_network_is_the_same(name, dtype):
    staged, inputs = from_gallery(name, dtype)
    adaptive = adapt(staged, inputs)
    with torch.no_grad():
        assert difference(staged(*inputs), adaptive.plain(*inputs)) <= BOUNDS[dtype]
    assert any("statistics" in path for path, _ in adaptive.compacted.named_modules())
    assert not any("statistics" in path for path, _ in adaptive.plain.named_modules())


def test_masks_are_those_of_the_compacted_network():
    """Also where statistics are far from zero, and so cancel."""
    staged, (x,) = from_gallery("lenet_500_300", kept="all")
    next(iter(bp.gates(staged).values())).running_mean += 50.0
    x = x + 50.0
    adaptive = adapt(staged, x)
    norms = [layer for layer in adaptive.compacted.modules() if type(layer) is nn.BatchNorm1d]
    assert len(norms) == 3
    seen = []
    for norm in norms:
        norm.register_forward_hook(lambda *call: seen.append(call[-1]))
    with torch.no_grad():
        adaptive.compacted(x)
        for mask, probability in zip(adaptive.masks(x), seen, strict=True):
            assert mask.any()
            assert torch.equal(mask != 0, probability > 1e-3)


def test_constants_of_all_kinds():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    staged = sparse(Constants(), x)
    adaptive = adapt(staged, x)
    with torch.no_grad():
        assert difference(staged(x), adaptive.plain(x)) <= 1e-5
    assert "exp" not in words(adaptive.plain)


def test_the_compacted_network_stays_as_it_was():
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs)
    assert any(type(layer) is nn.BatchNorm1d for layer in adaptive.compacted.modules())
    with torch.no_grad():
        assert difference(staged(*inputs), adaptive.compacted(*inputs)) <= 1e-5


def test_what_does_nothing_is_not_called():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.AlphaDropout(), nn.Linear(8, 3))
    staged = sparse(model, x, kept="all")
    adaptive = adapt(staged, x)
    assert {type(module) for module in adaptive.plain.children()} == {nn.Linear, nn.ReLU}
    assert any(isinstance(module, nn.Dropout) for module in adaptive.compacted.modules())
    with torch.no_grad():
        assert difference(staged(x), adaptive.plain(x)) <= 1e-5
