"""Layers that are called several times."""

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from masking import prune_at_random, prune_units
from torch import nn

import bayesprune as bp
from bayesprune.graph import trace
from bayesprune.graph.tracing import relative_difference
from bayesprune.removal import shrink
from bayesprune.removal.sharing import disagreement, sharing


class TwoStrides(nn.Module):
    """One weight in two convolutions, which are not the same layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(4, 6, 3, 3))

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return F.conv2d(x, self.weight, dilation=1).mean((2, 3)) + F.conv2d(x, self.weight, dilation=2).mean((2, 3))


class TwoBranches(nn.Module):
    """Two layers of their own, and one that reads both."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 3)
        self.shared = nn.Conv2d(6, 4, 3)

    def forward(self, x):
        return self.shared(torch.relu(self.left(x))) + self.shared(torch.relu(self.right(x)))


def test_calls_of_one_layer_lose_the_same_channels_and_stay_one_layer():
    torch.manual_seed(0)
    inputs = GALLERY["shared_attention"].inputs()
    gated = bp.sparsify(GALLERY["shared_attention"].build(), "bb", example_inputs=inputs)
    prune_units(gated, {"act.output_gate": [], "norm.output_gate": [0, 3, 4, 5]})
    result = bp.compact(gated.eval(), inputs)
    assert (result.model.conv.out_channels, result.model.squeeze.in_features, result.model.expand.out_features) == (4, 4, 4)
    assert len([name for name, _ in result.model.named_modules() if name.startswith(("squeeze", "expand"))]) == 2
    assert result.max_rel_error < 1e-5


def test_one_weight_with_other_settings_is_another_layer():
    torch.manual_seed(0)
    model, x = TwoStrides().eval(), torch.randn(2, 3, 12, 12)
    tied, calls = sharing(trace(model, x))
    assert len(tied) == 2
    assert not calls


def test_a_layer_whose_calls_disagree_stays_whole():
    torch.manual_seed(0)
    model, x = TwoBranches().double().eval(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    module = trace(model, x)
    with torch.no_grad():
        for layer, channels in ((module.left, [0, 1]), (module.right, [1, 2])):
            layer.weight[channels], layer.bias[channels] = 0.0, 0.0
        small, analysis = shrink(module)
        assert relative_difference(small(x), module(x)) < 1e-12
    assert disagreement(analysis) is None
    assert small.shared.in_channels == 6


def test_units_that_a_layer_reads_in_one_of_its_calls_only_are_left_alone():
    torch.manual_seed(0)
    with pytest.raises(bp.errors.InputError, match=r"shared \(Conv2d\), which reads its units, is used in several places"):
        bp.sparsify(TwoBranches(), "bb", example_inputs=torch.randn(2, 3, 12, 12))


def test_an_activation_with_one_parameter_may_be_called_for_any_channels():
    torch.manual_seed(0)
    act = nn.PReLU()
    model = nn.Sequential(nn.Conv2d(3, 6, 3), act, nn.Conv2d(6, 8, 3), act, nn.Flatten(), nn.Linear(8 * 64, 3)).eval()
    x = torch.randn(2, 3, 12, 12)
    gated = prune_at_random(bp.sparsify(model, "bb", example_inputs=x), 0.5)
    result = bp.compact(gated.eval(), x)
    assert result.model.get_submodule("0").out_channels == result.kept["2.input_gate"] < 6
    assert result.max_rel_error < 1e-5
