"""Where gates go in plain chains of layers."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from bayesprune.attach import placement, sparsify
from bayesprune.attach.chain import chain_places
from bayesprune.errors import InputError
from bayesprune.gates import gates


def sites(model, **options):
    """(name of the gate, units, what it controls) for each place."""
    places, _ = chain_places(model, **options)
    return [(place.name, place.units, f"{place.controls_dim} of {place.controls}") for place in places]


def left_alone(model):
    return {row.layer: row.reason for row in chain_places(model)[1]}


def conv_net(norm=True):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        *([nn.BatchNorm2d(4)] if norm else []),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def test_an_mlp_is_gated_at_the_inputs_of_its_linear_layers():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert sites(model) == [("0.input_gate", 4, "inputs of 0"), ("2.input_gate", 3, "inputs of 2")]
    assert left_alone(model) == {}


def test_convolutions_are_gated_after_their_norm_and_activation():
    assert sites(conv_net()) == [
        ("2.output_gate", 4, "outputs of 0"),
        ("5.output_gate", 6, "outputs of 4"),
        ("7.input_gate", 96, "inputs of 7"),
        ("9.input_gate", 5, "inputs of 9"),
    ]


def test_or_before_the_norm_as_in_the_paper():
    assert [name for name, *_ in sites(conv_net(), before_norm=True)] == ["0.output_gate", "4.output_gate", "7.input_gate", "9.input_gate"]


@pytest.mark.parametrize(("dims", "conv", "norm"), [(1, nn.Conv1d, nn.BatchNorm1d), (3, nn.Conv3d, nn.BatchNorm3d)])
def test_convolutions_of_other_dimensions(dims, conv, norm):
    model = nn.Sequential(conv(2, 3, 3), norm(3), nn.GELU(), conv(3, 2, 3))
    assert sites(model) == [("2.output_gate", 3, "outputs of 0")]
    x = torch.randn(2, 2, *[6] * dims)
    assert sparsify(model, "bb", example_inputs=x)(x).shape == (2, 2, *[2] * dims)


def test_nested_chains_with_names():
    block = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), relu=nn.ReLU()))
    model = nn.Sequential(OrderedDict(stem=block, head=nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))))
    assert sites(model) == [("stem.relu.output_gate", 4, "outputs of stem.conv"), ("head.2.input_gate", 16, "inputs of head.2")]


def test_an_activation_that_serves_in_several_places_carries_no_gate():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), relu, nn.Conv2d(4, 5, 3), relu, nn.Conv2d(5, 2, 3))
    assert [name for name, *_ in sites(model)] == ["1.output_gate", "3.output_gate"]
    gated, x = sparsify(model, "bb"), torch.randn(2, 1, 9, 9)
    assert gated.train()(x).shape == (2, 2, 3, 3)


def test_a_layer_that_stands_in_several_places_is_left_alone():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv, nn.ReLU(), nn.Conv2d(3, 2, 1))
    assert sites(model) == []
    assert left_alone(model)["0"] == "the layer stands in several places of the chain"
    with pytest.raises(InputError, match="nothing in Sequential can be gated"):
        sparsify(model, "bb")


def test_the_linear_layer_after_a_layer_in_several_places_is_gated():
    """Its inputs are the channels of that convolution, but nothing gates them there."""
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    assert sites(model) == [("5.input_gate", 3, "inputs of 5")]


def test_grouped_convolutions_are_left_alone_on_both_sides():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.ReLU(), nn.Conv2d(5, 1, 1)
    )
    assert sites(model) == [("5.output_gate", 5, "outputs of 4")]
    reasons = left_alone(model)
    assert "reads its channels is grouped" in reasons["0"]
    assert "the convolution is grouped" in reasons["2"]
    assert "network's outputs" in reasons["6"]


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.LayerNorm([4, 6, 6]), nn.InstanceNorm2d(4), nn.Softmax(1)])
def test_a_layer_that_mixes_channels_or_is_not_known_leaves_the_convolution_alone(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    assert type(norm).__name__ in left_alone(model)["0"]
    assert [name for name, *_ in sites(model)] == ["3.output_gate", "5.input_gate"]


def test_a_linear_layer_that_reads_channels_is_not_gated_a_second_time():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert sites(model) == [("1.output_gate", 4, "outputs of 0")]
    assert "gated already" in left_alone(model)["4"]


def test_a_single_layer():
    assert sites(nn.Linear(3, 2)) == [(".input_gate", 3, "inputs of ")]
    gated = sparsify(nn.Linear(3, 2), "bb", example_inputs=torch.zeros(1, 3))
    assert list(gates(gated)) == ["input_gate"]
    assert "inputs of the model" in str(placement(gated))


@pytest.mark.parametrize("model", [nn.Transformer(8, 2, 1, 1, 8), nn.ModuleList([nn.Linear(2, 2)]), nn.LSTM(2, 2), nn.ReLU()])
def test_what_is_no_chain(model):
    with pytest.raises(InputError, match=rf"does not know where gates go in a {type(model).__name__}.*nn.Sequential"):
        sparsify(model, "bb")


def test_a_chain_with_nothing_to_gate():
    with pytest.raises(InputError, match="0 places were found"):
        sparsify(nn.Sequential(nn.ReLU(), nn.Conv2d(1, 2, 3)), "bb")


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 4, 4), (2, 3, 5, 4)])
def test_linear_layers_over_tokens_are_gated_along_their_features(shape):
    """A linear layer reads the last dimension, whatever lies between it and the batch."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(shape)
    gated = sparsify(model, "vib", example_inputs=x).eval()
    with torch.no_grad():
        for gate in gates(gated).values():
            gate.mu.fill_(1.0)
        gates(gated)["0.input_gate"].mu[0] = 3.0
    expected = model(x * torch.tensor([3.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(gated(x), expected)


def test_a_sequential_with_a_forward_of_its_own_is_not_a_chain():
    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    with pytest.raises(InputError, match="does not know where gates go in a Residual"):
        chain_places(Residual(nn.Linear(4, 4), nn.ReLU()))
    places, left_alone = chain_places(nn.Sequential(nn.Linear(4, 4), Residual(nn.Linear(4, 4)), nn.Linear(4, 2)))
    assert [place.site for place in places] == ["0", "2"]
    assert [(row.layer, row.reason) for row in left_alone] == [("1", "Residual is not a layer that sparsify knows")]
