"""Where gates go in models that say nothing about it."""

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from torch import nn

from bayesprune.attach import placement, sparsify
from bayesprune.errors import InputError
from bayesprune.gates import gates

EXPECTED = {
    "mlp": "inputs of 1: 36, inputs of 3: 24, inputs of 5: 16",
    "conv1d": "outputs of 0: 10, outputs of 4: 12, inputs of 9: 96, inputs of 12: 16",
    "grouped_conv": "outputs of stem: 12, outputs of conv2: 4, outputs of conv3: 12, outputs of widening: 4",
    "groupnorm_net": "outputs of conv1: 4, outputs of conv2: 4",
    "layernorm_net": "inputs of stage1.pwconv2: 24, outputs of stage1.pwconv2: 8, "
    "inputs of stage2.pwconv2: 36, outputs of stage2.pwconv2: 12",
    "swiglu": "inputs of embed: 10, inputs of layers.0.w3: 24, outputs of layers.0.w3: 16, "
    "inputs of layers.1.w3: 20, outputs of layers.1.w3: 16",
    "shared_layer": "outputs of conv_out: 12",
    "shared_attention": "outputs of conv: 8",
    "stacked_branches": "outputs of stem: 6, outputs of branches.0: 8, outputs of branches.1: 8, inputs of weigh: 5, outputs of left: 6, "
    "outputs of right: 6",
    "tied_weights": "inputs of fc2: 24, outputs of fc2: 16",
    "lstm_tail": "outputs of conv1: 8",
    "transposed_autoencoder": "outputs of encoder.0: 8, outputs of encoder.2: 12, inputs of bottleneck: 192, "
    "inputs of expand: 10, outputs of expand: 12, outputs of deconv1: 8",
}  # fmt: skip
REASONS = {
    "groupnorm_net": {"conv3": "norm3 (GroupNorm) normalises its units together"},
    "layernorm_net": {"stem": "stage1.norm (LayerNorm) normalises its units together"},
    "shared_layer": {
        "conv_in": "shared (Conv2d), which reads its units, is used in several places",
        "shared": "it is used in several places, or its weight is tied to another layer's",
    },
    "tied_weights": {"embedding": "Embedding is not a layer that sparsify knows"},
    "lstm_tail": {"conv2": "lstm (LSTM) needs all of its units", "lstm": "LSTM is not a layer that sparsify knows"},
    "unet": {"head": "its units are the network's outputs"},
    "resnet_basic": {"fc": "its inputs are a residual stream, the sum of several branches"},
}


def gated(name, method="bb", **options):
    torch.manual_seed(0)
    return sparsify(GALLERY[name].build(), method, example_inputs=GALLERY[name].inputs(), **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_places(name):
    assert ", ".join(f"{row.controls}: {row.units}" for row in placement(gated(name)).gates) == EXPECTED[name]


@pytest.mark.parametrize("name", REASONS)
def test_layers_left_alone_and_why(name):
    found = {row.layer: row.reason for row in placement(gated(name)).left_alone}
    assert REASONS[name].items() <= found.items()


@pytest.mark.parametrize("name", GALLERY)
def test_every_layer_is_gated_or_named_or_made_smaller(name):
    """A layer of which nothing is said may be one that a gate elsewhere makes smaller, but no other."""
    model = gated(name)
    found = placement(model)
    named = {row.layer for row in found.left_alone}
    controlled = {row.controls.split(" of ")[1] for row in found.gates}
    assert not named & controlled
    assert all(row.units > 0 for row in found.gates)
    assert [gate.position for gate in gates(model).values()] == list(range(len(found.gates)))


@pytest.mark.parametrize("name", ["vit_own", "vit_matmul", "vit_bmm", "vit_torch", "transformer_encoder", "transformer_encoder_norm_first"])
def test_attention_is_gated_by_heads(name):
    heads = [gate for gate in gates(gated(name)).values() if gate.units.groups is not None]
    assert len(heads) == 2
    for gate in heads:
        width = len(gate.units.groups) // gate.num_units
        assert gate.units.groups.tolist() == [channel // width for channel in range(len(gate.units.groups))]


def test_excluded_convolution_leaves_its_channels_to_the_linear_layer():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    x = torch.randn(2, 1, 8, 8)
    assert list(gates(sparsify(model, "bb", example_inputs=x))) == ["1.output_gate"]
    without = sparsify(model, "bb", example_inputs=x, exclude=["0"])
    assert list(gates(without)) == ["4.input_gate"]
    assert [(row.layer, row.reason) for row in placement(without).left_alone] == []


def test_before_norm_and_after_the_activation():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(3, 2)
    )
    x = torch.randn(2, 1, 8, 8)
    assert next(iter(gates(sparsify(model, "bb", example_inputs=x)))) == "2.output_gate"
    assert next(iter(gates(sparsify(model, "bb", example_inputs=x, before_norm=True)))) == "0.output_gate"
    assert next(iter(gates(sparsify(model, "vib", example_inputs=x)))) == "1.output_gate", "factors below zero do not pass a ReLU"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.ReLU()), "no linear or convolutional layers"),
        (nn.Sequential(nn.LayerNorm(4)), "no linear or convolutional layers"),
        (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), "its inputs come from 0"),
    ],
)
def test_nothing_to_gate(model, message):
    with pytest.raises(InputError, match=f"nothing in Sequential can be gated.*{message}"):
        sparsify(model, "bb", example_inputs=torch.randn(2, 4))


def test_model_that_says_nothing_about_its_inputs():
    with pytest.raises(InputError, match="Sequential does not say what its inputs look like: give example_inputs"):
        sparsify(nn.Sequential(nn.Conv2d(1, 2, 3)), "bb")


def test_hooks_of_others_are_respected():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[2].register_forward_hook(lambda layer, inputs, output: output + 1)
    x = torch.randn(2, 4)
    found = placement(sparsify(model, "bb", example_inputs=x))
    assert {row.layer: row.reason for row in found.left_alone}["2"] == "hooks of another library act on it"


class WrittenInto(nn.Module):
    """The shortcut reads what an activation in place has made of it."""

    def __init__(self, act):
        super().__init__()
        self.stem, self.act, self.conv, self.head = nn.Conv2d(3, 8, 3), act, nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.conv(self.act(x)))


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(inplace=True)], ids=["ReLU", "SiLU"])
def test_a_gate_stands_where_all_who_read_its_units_see_it(act):
    found = sparsify(WrittenInto(act), "bb", example_inputs=torch.randn(2, 3, 8, 8))
    assert list(gates(found)) == ["stem.output_gate", "conv.output_gate"]


class InstanceNorms(nn.Module):
    """Norms as functions, with parameters and running statistics or without."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1)
        self.norm = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)

    def forward(self, x):
        x = F.relu(F.instance_norm(self.conv1(x)))
        norm = self.norm
        x = F.instance_norm(self.conv2(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, use_input_stats=False)
        return self.head(F.relu(x))


def test_instance_norms_as_functions():
    found = sparsify(InstanceNorms().eval(), "bb", example_inputs=torch.randn(2, 3, 12, 12))
    assert list(gates(found)) == ["conv2.input_gate", "head.input_gate"]
