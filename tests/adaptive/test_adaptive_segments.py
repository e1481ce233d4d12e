"""Which layers can do with fewer inputs, and why others cannot."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from per_input_networks import adapt, from_gallery, masked, sparse
from torch import nn

from bayesprune.graph.binding import function_of

ROWS, TOKENS, IMAGES = (3, 8), (3, 5, 8), (3, 8, 6, 6)


class Net(nn.Module):
    """Any computation with some layers."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.compute(self, *inputs)


class Selected(nn.Module):
    """A layer that reads some channels only."""

    def __init__(self, *channels):
        super().__init__()
        self.register_buffer("index", torch.tensor(channels))
        self.layer = nn.Linear(len(channels), 4)

    def forward(self, x):
        return self.layer(torch.index_select(x, dim=1, index=self.index))


def thresholds(network):
    return [
        node
        for node in network.graph.nodes
        if node.op == "call_function" and (word := function_of(node.op, node.target)) is not None and word.name == "threshold"
    ]


@pytest.mark.parametrize(
    ("shape", "channel_dim", "following", "each"),
    [
        (ROWS, 1, nn.Linear(8, 4), 1),
        (TOKENS, -1, nn.Linear(8, 4), 1),
        ((3, 5, 2, 8), -1, nn.Linear(8, 4), 1),
        ((3, 8, 9), 1, nn.Conv1d(8, 4, 3), 1),
        (IMAGES, 1, nn.Conv2d(8, 4, 3), 1),
        ((3, 8, 4, 4, 4), 1, nn.Conv3d(8, 4, 3), 1),
        (IMAGES, 1, nn.Sequential(nn.ReLU(), nn.Dropout(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)), 1),
        (IMAGES, 1, nn.Sequential(nn.AvgPool2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 4)), 4),
        (IMAGES, 1, nn.Sequential(nn.Flatten(), nn.GELU(), nn.Linear(288, 4)), 36),
        (IMAGES, 1, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), 1),
        (ROWS, 1, nn.Sequential(nn.Flatten(), nn.Linear(8, 4)), 1),
    ],
)
def test_a_layer_behind_a_mask_is_found(shape, channel_dim, following, each):
    found = masked(torch.randn(shape), channel_dim, following)
    (segment,) = found.segments
    assert not found.unused
    assert (segment.units, segment.each, segment.rank) == (8, each, len(shape))
    assert segment.places.tolist() == list(range(8 * each))


@pytest.mark.parametrize(
    ("shape", "channel_dim", "following", "reason"),
    [
        (IMAGES, 1, nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"), "pads with other values than zero"),
        (IMAGES, 1, nn.Conv2d(8, 8, 3, groups=2), "Conv2d .* stands between"),
        (IMAGES, 1, nn.ConvTranspose2d(8, 4, 3), "ConvTranspose2d .* stands between"),
        (IMAGES, 1, nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)), "BatchNorm2d .* stands between"),
        (IMAGES, 1, nn.Sequential(nn.Sigmoid(), nn.Conv2d(8, 4, 3)), "zeros are no zeros"),
        (IMAGES, 1, nn.Sequential(nn.Hardtanh(0.5, 1.0), nn.Conv2d(8, 4, 3)), "zeros are no zeros"),
        (IMAGES, 1, nn.Sequential(nn.Flatten(2), nn.Linear(36, 4)), "mixes channels with other dimensions"),
        (IMAGES, 1, nn.Linear(6, 4), "mixes other dimensions"),
        (TOKENS, -1, nn.Conv1d(5, 4, 3), "mixes other dimensions"),
        (TOKENS, -1, nn.Sequential(nn.Flatten(), nn.Linear(40, 4)), "mixes channels with other dimensions"),
        (TOKENS, -1, nn.Sequential(nn.MaxPool1d(2), nn.Linear(4, 4)), "MaxPool1d .* stands between"),
        (ROWS, 1, nn.Sequential(nn.Softmax(1), nn.Linear(8, 4)), "Softmax .* stands between"),
        (ROWS, 1, nn.ReLU(), "output .* stands between"),
        (ROWS, 1, lambda y: (y, F.relu(y)), "several operations read it"),
        (ROWS, 1, lambda y: torch.add(y, 1.0), "add .* stands between"),
        (ROWS, 1, Selected(0, 3, 3), "takes some of its units twice"),
    ],
)
def test_a_mask_that_no_layer_gains_from_is_named_with_the_reason(shape, channel_dim, following, reason):
    found = masked(torch.randn(shape), channel_dim, following)
    assert not found.segments
    (unused,) = found.unused
    assert unused.behind == "the input"
    assert re.search(reason, unused.reason), unused.reason


def test_a_mask_is_named_by_the_layer_that_makes_its_units():
    torch.manual_seed(0)
    layers = {"a": nn.Linear(6, 8), "norm": nn.BatchNorm1d(8), "relu": nn.ReLU(), "b": nn.Linear(8, 3), "c": nn.Linear(8, 3)}

    def compute(net, x):
        h = net.relu(net.norm(net.a(x)))
        return net.b(h) + net.c(h)

    x = torch.randn(4, 6)
    adaptive = adapt(sparse(Net(compute, **layers), x, kept="all"), x, 1, 4)
    assert ("a", "several operations read it") in {(unused.behind, unused.reason) for unused in adaptive.unused}


@pytest.mark.parametrize("before_norm", [False, True])
@pytest.mark.parametrize("name", ["lenet5", "resnet_basic", "conv1d", "squeeze_excitation", "lstm_tail"])
def test_no_mask_is_passed_over_in_silence(name, before_norm):
    adaptive = adapt(*from_gallery(name, before_norm=before_norm))
    assert len(adaptive.segments) + len(adaptive.unused) == len(thresholds(adaptive.plain)) > 0


def test_layers_of_a_fully_connected_network():
    adaptive = adapt(*from_gallery("lenet_500_300", kept="all"))
    assert [(segment.name, segment.units) for segment in adaptive.segments] == [("fc1", 784), ("fc2", 24), ("fc3", 16)]
    assert not adaptive.unused


def test_a_layer_may_read_some_of_the_units():
    (segment,) = masked(torch.randn(ROWS), 1, Selected(5, 0, 3)).segments
    assert segment.units == 8
    assert segment.selection.tolist() == segment.places.tolist() == [5, 0, 3]


def test_inputs_with_several_masks_each_are_computed_in_full():
    """Rows of the gated activation are tokens, not inputs."""
    torch.manual_seed(0)
    layers = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 7), "c": nn.Linear(7, 8), "d": nn.Linear(8, 2)}
    model = Net(lambda s, x: s.d(F.relu(s.c(s.b(F.relu(s.a(x.flatten(0, 1)))).unflatten(0, (-1, 5)).mean(1)))), **layers)
    x = torch.randn(4, 5, 6)
    staged = sparse(model, x, kept="all")
    adaptive = adapt(staged, x, 1, 4)
    assert {unused.reason for unused in adaptive.unused} == {"an input has several masks"}
    assert {unused.behind for unused in adaptive.unused} == {"the input", "a"}
    assert "d" in {segment.name for segment in adaptive.segments}
    torch.testing.assert_close(adaptive(x), staged(x))


@pytest.mark.parametrize("name", sorted(GALLERY)[::6])
def test_segments_are_where_the_graph_says(name):
    adaptive = adapt(*from_gallery(name, kept="all"))
    nodes = {node.name: node for node in adaptive.plain.graph.nodes}
    for segment in adaptive.segments:
        assert adaptive.plain.get_submodule(segment.name) is segment.layer
        assert nodes[segment.consumer].target == segment.name
        assert nodes[segment.path[0]] in nodes[segment.read].users
        assert nodes[segment.path[-1]] in nodes[segment.consumer].all_input_nodes


def test_segments_of_a_long_network_can_be_copied():
    """Copies of its nodes would recurse from each to the next."""
    found = masked(torch.randn(ROWS), 1, nn.Sequential(nn.Linear(8, 4), *(nn.ReLU() for _ in range(600))))
    copied = copy.deepcopy(found)
    inputs = torch.randn(ROWS), torch.rand(ROWS)
    assert copied.layers[0] is not found.layers[0]
    assert copied.layers[0].layer is copied.network.get_submodule("following.0")
    assert torch.equal(copied.with_layers(copied.layers)(*inputs), found.network(*inputs))
