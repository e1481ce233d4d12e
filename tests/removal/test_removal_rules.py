"""Rules one by one: a small network around an operation, with units that are zero, shrunk and compared."""

import pytest
import torch
import torch.nn.functional as F
from gallery import randomise_norms
from torch import nn

from bayesprune.graph import trace
from bayesprune.removal import shrink


class Around(nn.Module):
    """Something between two layers, the first of which loses outputs."""

    def __init__(self, operation, first, second, *more):
        super().__init__()
        self.operation, self.first, self.second, self.more = operation, first, second, nn.ModuleList(more)

    def forward(self, x):
        x = self.operation(self, self.first(x))
        return x if self.second is None else self.second(x)


def conv(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, **{"padding": 1} | options)


def on_maps(operation, channels=8, *more, second=None, outputs=8):
    return Around(operation, conv(3, outputs), second or conv(channels, 4), *more), torch.randn(3, 3, 6, 6)


def on_features(operation, features=8, *more, outputs=8):
    return Around(operation, nn.Linear(5, outputs), nn.Linear(features, 4), *more), torch.randn(3, 5)


def on_tokens(operation, features=8, *more, outputs=8):
    return Around(operation, nn.Linear(5, outputs), nn.Linear(features, 4), *more), torch.randn(3, 7, 5)


def module(m, x):
    return m.more[0](x)


CASES = {
    "relu": lambda: on_maps(lambda m, x: F.relu(x)),
    "sigmoid": lambda: on_maps(lambda m, x: torch.sigmoid(x)),
    "batch norm": lambda: on_maps(module, 8, nn.BatchNorm2d(8)),
    "batch norm of zero weight": lambda: on_maps(module, 8, nn.BatchNorm2d(8)),
    "batch norm without affine": lambda: on_maps(module, 8, nn.BatchNorm2d(8, affine=False)),
    "batch norm without statistics": lambda: on_maps(module, 8, nn.BatchNorm2d(8, track_running_stats=False)),
    "batch norm of features": lambda: on_features(module, 8, nn.BatchNorm1d(8)),
    "instance norm": lambda: on_maps(module, 8, nn.InstanceNorm2d(8, affine=True)),
    "instance norm without affine": lambda: on_maps(module, 8, nn.InstanceNorm2d(8)),
    "instance norm with statistics": lambda: on_maps(module, 8, nn.InstanceNorm2d(8, track_running_stats=True)),
    "instance norm, then a part of it": lambda: on_maps(
        lambda m, x: m.more[0](x + m.more[1].weight[0, 0])[:, :, 1:3], 8, nn.InstanceNorm2d(8), nn.Conv2d(1, 1, 6)
    ),
    "group norm": lambda: on_maps(module, 8, nn.GroupNorm(4, 8)),
    "layer norm": lambda: on_tokens(module, 8, nn.LayerNorm(8)),
    "rms norm": lambda: on_tokens(module, 8, nn.RMSNorm(8)),
    "local response norm": lambda: on_maps(module, 8, nn.LocalResponseNorm(3)),
    "prelu": lambda: on_maps(module, 8, nn.PReLU(8)),
    "max pool with a border": lambda: on_maps(module, 8, nn.MaxPool2d(3, 2, padding=1)),
    "average pool with a border": lambda: on_maps(lambda m, x: m.more[0](torch.sigmoid(x)), 8, nn.AvgPool2d(3, 2, padding=1)),
    "average pool, border not counted": lambda: on_maps(
        lambda m, x: m.more[0](torch.sigmoid(x)), 8, nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    ),
    "upsample": lambda: on_maps(lambda m, x: m.more[0](torch.sigmoid(x)), 8, nn.Upsample(scale_factor=2, mode="bilinear")),
    "interpolate": lambda: on_maps(lambda m, x: F.interpolate(torch.sigmoid(x), scale_factor=2.0)),
    "zero padding": lambda: on_maps(lambda m, x: F.pad(torch.sigmoid(x), (1, 2, 0, 1))),
    "constant padding": lambda: on_maps(module, 8, nn.ConstantPad2d(1, 0.7)),
    "reflection padding": lambda: on_maps(lambda m, x: m.more[0](torch.sigmoid(x)), 8, nn.ReflectionPad2d(1)),
    "padding of channels": lambda: on_maps(lambda m, x: F.pad(F.relu(x), (0, 0, 0, 0, 1, 3)), 12),
    "padding of tokens": lambda: on_tokens(lambda m, x: F.pad(F.relu(x), (0, 0, 1, 0))),
    "padding of features": lambda: on_tokens(lambda m, x: F.pad(F.relu(x), (2, 1)), 11),
    "grouped convolution": lambda: on_maps(module, 12, nn.Conv2d(8, 12, 3, groups=4, padding=1)),
    "depthwise convolution": lambda: on_maps(lambda m, x: m.more[0](torch.sigmoid(x)), 8, nn.Conv2d(8, 8, 3, groups=8, padding=1)),
    "transposed convolution": lambda: on_maps(lambda m, x: m.more[0](torch.sigmoid(x)), 6, nn.ConvTranspose2d(8, 6, 4, 2, 1)),
    "grouped transposed convolution": lambda: on_maps(module, 6, nn.ConvTranspose2d(8, 6, 3, groups=2)),
    "reflecting convolution": lambda: on_maps(lambda m, x: torch.sigmoid(x), second=conv(8, 4, padding_mode="reflect")),
    "convolution of the same size": lambda: on_maps(lambda m, x: torch.sigmoid(x), second=conv(8, 4, padding="same", dilation=2)),
    "pixel shuffle": lambda: on_maps(module, 2, nn.PixelShuffle(2)),
    "channel shuffle": lambda: on_maps(lambda m, x: x.view(-1, 2, 4, 6, 6).transpose(1, 2).reshape(-1, 8, 6, 6)),
    "concatenation": lambda: on_maps(lambda m, x: torch.cat((torch.sigmoid(x), F.relu(x)), 1), 16),
    "chunks": lambda: on_maps(lambda m, x: (lambda a, b: a * torch.sigmoid(b))(*x.split([4, 4], 1)), 4),
    "stack": lambda: on_maps(lambda m, x: torch.stack((x, x * 2), 1).mean(1)),
    "roll and flip": lambda: on_maps(lambda m, x: torch.roll(x, 3, 1).flip(1)),
    "selection": lambda: on_features(lambda m, x: x.index_select(1, torch.tensor([1, 7, 1])), 3),
    "selection by a computed index": lambda: on_features(lambda m, x: x.index_select(1, x.sum(0).argsort()), 8),
    "softmax": lambda: on_features(lambda m, x: torch.softmax(x, -1)),
    "softmax without a dimension": lambda: on_features(module, 8, nn.Softmax()),
    "glu": lambda: on_features(module, 4, nn.GLU()),
    "mean over channels": lambda: on_maps(lambda m, x: x * x.mean(1, keepdim=True)),
    "largest over channels": lambda: on_maps(lambda m, x: x * x.amax(1, keepdim=True)),
    "mean over positions": lambda: on_tokens(lambda m, x: torch.sigmoid(x).mean(1)),
    "sum over positions": lambda: on_tokens(lambda m, x: torch.sigmoid(x).sum(1)),
    "sum over the batch": lambda: on_features(lambda m, x: x + torch.sigmoid(x).sum(0)),
    "product with a size": lambda: on_maps(lambda m, x: torch.sigmoid(x) / x.size(1)),
    "product with the size of the batch": lambda: on_features(lambda m, x: torch.sigmoid(x) / x.size(0)),
    "product of sizes": lambda: on_maps(lambda m, x: x / (x.size(2) * x.size(3))),
    "number of elements": lambda: on_features(lambda m, x: x.reshape(x.numel() // 8, 8)),
    "subtraction from one": lambda: on_maps(lambda m, x: 1 - torch.sigmoid(x)),
    "largest of two": lambda: on_maps(lambda m, x: torch.maximum(x, x.flip(1))),
    "where": lambda: on_maps(lambda m, x: torch.where(x > 0, x, x.flip(1))),
    "matrix and vector": lambda: on_features(lambda m, x: x * (F.relu(x) @ m.more[0].weight[0]).unsqueeze(1), 8, nn.Linear(8, 1)),
    "matrix product": lambda: on_tokens(lambda m, x: x @ (x.transpose(1, 2) @ x)),
    "attention": lambda: on_tokens(lambda m, x: F.scaled_dot_product_attention(x, x.flip(1), torch.sigmoid(x))),
    "attention of heads": lambda: on_tokens(
        lambda m, x: (lambda h: F.scaled_dot_product_attention(h, h, h))(x.unflatten(-1, (4, 2)).transpose(1, 2)).transpose(1, 2).flatten(2)
    ),
    "causal attention": lambda: on_tokens(lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "einsum": lambda: on_tokens(lambda m, x: torch.einsum("bif,bjf->bij", x, x) @ x),
    "sum with a branch": lambda: on_maps(lambda m, x: x + m.more[0](F.relu(x)), 8, conv(8, 8)),
    "the same twice": lambda: on_maps(lambda m, x: x + x),
    "lstm": lambda: on_tokens(lambda m, x: m.more[0](x)[0], 6, nn.LSTM(8, 6, batch_first=True)),
    "same norm twice": lambda: on_maps(
        lambda m, x: m.more[0](F.relu(m.more[1](F.relu(m.more[0](x))))), 8, nn.BatchNorm2d(8, affine=False), conv(8, 8)
    ),
    "same group norm twice": lambda: on_maps(
        lambda m, x: m.more[0](F.relu(m.more[1](F.relu(m.more[0](x))))), 8, nn.GroupNorm(4, 8, affine=False), conv(8, 8)
    ),
}


def prune_rows(model, dead, with_bias):
    """Zero outputs of every layer but the last; with their bias, or such that they are constants."""
    with torch.no_grad():
        for layer in (model.first, *model.more):
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and getattr(layer, "groups", 1) == 1:
                rows = torch.tensor([index % len(layer.weight) for index in dead], dtype=torch.int64)
                layer.weight[rows] = 0
                if with_bias:
                    layer.bias[rows] = 0
    return model


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("with_bias", [True, False], ids=["zeros", "constants"])
@pytest.mark.parametrize("dead", [(), (0, 1, 6), (2, 3), tuple(range(8))], ids=["none", "some", "a group", "all"])
@pytest.mark.parametrize("name", CASES)
def test_shrunk_around_an_operation(name, dead, with_bias):
    torch.manual_seed(0)
    model, x = CASES[name]()
    model, x = randomise_norms(model).double().eval(), x.double()
    for norm in model.modules():
        if isinstance(norm, nn.InstanceNorm2d) and norm.running_mean is not None:
            norm.running_mean.uniform_(-0.5, 0.5)
    if name == "batch norm of zero weight":
        model.more[0].weight.data[[2, 4]] = 0
    prune_rows(model, dead, with_bias)
    small, _ = shrink(trace(model, x))
    for inputs in (x, torch.randn(5, *x.shape[1:], dtype=torch.float64), 10 * torch.randn(2, *x.shape[1:], dtype=torch.float64)):
        torch.testing.assert_close(small(inputs), model(inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "batch norm", "grouped convolution", "channel shuffle", "concatenation", "group norm", "chunks"])
def test_dead_units_are_really_gone(name):
    torch.manual_seed(0)
    model, x = CASES[name]()
    prune_rows(model.double().eval(), (0, 1, 4, 5), True)
    small, _ = shrink(trace(model, x.double()))
    assert small.first.out_channels <= 6, "the four that live, and a unit that may stand for constants"
