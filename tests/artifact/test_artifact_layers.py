"""Every layer of the vocabulary survives being written down."""

import inspect

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from bayesprune.artifact import load, save
from bayesprune.artifact.layers import UnsyncedBatchNorm, check_settings, defaults, layer_plan, make_layer
from bayesprune.artifact.tensors import own_tensors
from bayesprune.artifact.values import MalformedError
from bayesprune.errors import InputError
from bayesprune.graph.layer_types import LAYERS

IMAGE, SEQUENCE, VECTOR, VOLUME = (2, 4, 8, 8), (2, 4, 8), (2, 4), (2, 4, 6, 6, 6)
UNPOOLINGS = (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)
SHAPES = {"1d": SEQUENCE, "2d": IMAGE, "3d": VOLUME}
# With settings that differ from the defaults wherever there are some; types that are not here take none.
EXAMPLES = [
    nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.Bilinear(4, 4, 3, bias=False),
    nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), nn.Conv1d(4, 6, 3, padding="same", dilation=2, bias=False),
    nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="circular"), nn.Conv2d(4, 6, (3, 2), padding=(1, 0), bias=False),
    nn.Conv3d(4, 6, 3, stride=2, padding=1, groups=2), nn.Conv3d(4, 6, 3, padding="valid", padding_mode="replicate", bias=False),
    nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False),
    nn.ConvTranspose3d(4, 6, 3, stride=2, dilation=(1, 2, 1)),
    *(kind(4, eps=1e-3, momentum=None) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    *(kind(4, affine=False) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    *(kind(4, track_running_stats=False) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    *(kind(4) for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)),
    *(kind(4, affine=True, track_running_stats=True) for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)),
    nn.LayerNorm((8,), eps=1e-3), nn.LayerNorm((8, 8), bias=False), nn.LayerNorm(8, elementwise_affine=False), nn.RMSNorm((8,), eps=1e-3),
    nn.GroupNorm(2, 4), nn.GroupNorm(2, 4, affine=False), nn.LocalResponseNorm(3, alpha=0.1, beta=0.5, k=2.0),
    nn.Dropout(0.3), nn.Dropout1d(0.3), nn.Dropout2d(0.3), nn.Dropout3d(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3),
    nn.LeakyReLU(0.3), nn.ELU(0.5), nn.CELU(0.5), nn.GELU("tanh"), nn.Hardtanh(-0.5, 0.25), nn.Softplus(2.0, 3.0), nn.Softshrink(0.1),
    nn.Hardshrink(0.1), nn.Threshold(0.1, 20.0), nn.PReLU(4), nn.GLU(1), nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1),
    *(kind(3, stride=2, padding=1, ceil_mode=True) for kind in (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)),
    *(kind(2, dilation=2) for kind in (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)),
    *(kind(3, stride=2, padding=1, count_include_pad=False) for kind in (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)),
    *(kind(2) for kind in (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)),
    *(kind(2) for kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)), nn.AdaptiveAvgPool2d((None, 3)),
    nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True), nn.Upsample(size=(5, 7)),
    nn.Upsample(scale_factor=(1.5, 2.0), mode="nearest-exact"), nn.UpsamplingNearest2d(scale_factor=2),
    nn.UpsamplingBilinear2d(size=(5, 7)),
    *(kind((1, 2)) for kind in (nn.ZeroPad1d, nn.ReflectionPad1d, nn.ReplicationPad1d, nn.CircularPad1d)), nn.ConstantPad1d(1, 3.5),
    *(kind((1, 2, 3, 4)) for kind in (nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d)),
    nn.ConstantPad2d(-1, 3.5),
    *(kind(1) for kind in (nn.ZeroPad3d, nn.ReflectionPad3d, nn.ReplicationPad3d, nn.CircularPad3d)), nn.ConstantPad3d(1, 3.5),
    nn.Flatten(2), nn.Unflatten(1, (2, 2)), nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2),
    nn.Embedding(5, 3, padding_idx=1), nn.Embedding(5, 3, max_norm=0.5, scale_grad_by_freq=True),
    nn.LSTM(8, 3, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1), nn.LSTM(8, 4, proj_size=2),
    *(kind(3, stride=2, padding=1) for kind in UNPOOLINGS),
    nn.GRU(8, 3, bias=False), nn.RNN(8, 3, nonlinearity="relu"), UnsyncedBatchNorm(4, momentum=0.3),
]  # fmt: skip
EXAMPLES += [kind() for kind in LAYERS.values() if kind is not nn.SyncBatchNorm and not any(type(each) is kind for each in EXAMPLES)]


def shape_for(name):
    if name in ("LSTM", "GRU", "RNN"):
        return SEQUENCE
    if name in ("Linear", "Bilinear"):
        return VECTOR
    return next((shape for suffix, shape in SHAPES.items() if name.lower().endswith(suffix)), IMAGE)


class Alone(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        if isinstance(self.layer, UNPOOLINGS):
            return self.layer(x, torch.argsort(x.flatten(2)).reshape(x.shape))
        return self.layer(x, x) if isinstance(self.layer, nn.Bilinear) else self.layer(x)


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: type(layer).__name__)
def test_layer(layer, tmp_path):
    torch.manual_seed(0)
    for buffer in layer.buffers():
        buffer.uniform_(0.5, 1.5) if buffer.is_floating_point() else None
    x = torch.randint(0, 5, (2, 3)) if isinstance(layer, nn.Embedding) else torch.randn(shape_for(type(layer).__name__))
    model = Alone(layer).eval()
    save(model, tmp_path / "layer.safetensors", example_inputs=x)
    network = load(tmp_path / "layer.safetensors")
    for a, b in zip(pytree.tree_leaves(model(x)), pytree.tree_leaves(network(x)), strict=True):
        assert torch.equal(a, b)
    if not isinstance(layer, (UnsyncedBatchNorm, nn.GLU)):  # which are named otherwise, or written out in functions
        assert str(network.get_submodule("layer")) == str(layer)


def test_synchronised_batch_norm_is_described_as_one():
    layer = nn.SyncBatchNorm(4, momentum=0.3)
    plan = layer_plan(layer)
    made = make_layer(plan)
    assert plan.type == "SyncBatchNorm"
    assert isinstance(made, UnsyncedBatchNorm)
    assert own_tensors(made).keys() == own_tensors(layer).keys()
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(made), nn.SyncBatchNorm)


@pytest.mark.parametrize("layer", [nn.SyncBatchNorm(4), UnsyncedBatchNorm(4)])
def test_synchronised_batch_norm_runs_on_the_processor(layer, tmp_path):
    x = torch.randn(IMAGE)
    graph = fx.Graph()
    graph.output(graph.call_module("norm", (graph.placeholder("x"),)))
    save(fx.GraphModule({"norm": layer}, graph), tmp_path / "a", example_inputs=x)
    network = load(tmp_path / "a")
    save(network, tmp_path / "b")
    assert torch.equal(load(tmp_path / "b")(x), nn.BatchNorm2d(4).eval()(x))
    assert torch.isfinite(network.train()(x)).all()
    with pytest.raises(InputError, match="at least 2 dimensions"):
        network(torch.randn(4))


@pytest.mark.parametrize("layer", [nn.CosineSimilarity(), nn.MultiheadAttention(4, 2), nn.Sequential()])
def test_types_outside_the_vocabulary_are_refused(layer):
    with pytest.raises(MalformedError, match=type(layer).__name__):
        layer_plan(layer)


def test_subclass_is_refused():
    class Odd(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, 2 * weight, bias)

    with pytest.raises(MalformedError, match="Odd"):
        layer_plan(Odd(1, 1, 1))


def test_layer_whose_settings_lie_about_its_tensors_is_refused(tmp_path):
    model = Alone(nn.Linear(4, 3)).eval()
    model.layer.weight = nn.Parameter(torch.randn(2, 4))
    model.layer.bias = nn.Parameter(torch.randn(2))
    with pytest.raises(InputError, match=r"layer\.weight.*\(3, 4\)"):
        save(model, tmp_path / "a", example_inputs=torch.randn(2, 4))


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": "__import__"},
        {"stride": 10**6},
        {"dilation": 0},
        {"padding": (1, -1)},
        {"nothing": 1},
        {"_weight": 1},
        {"device": "cuda"},
        {"dtype": 1},
    ],
)
def test_settings_that_no_convolution_has(settings):
    wrong = {"in_channels": 1, "out_channels": 1, "kernel_size": 1} | settings
    with pytest.raises(MalformedError):
        check_settings("Conv2d", wrong)


def test_every_setting_is_an_argument_of_its_constructor():
    for name, layer in LAYERS.items():
        if name not in ("LSTM", "GRU", "RNN"):
            assert defaults(name).keys() <= inspect.signature(layer).parameters.keys()


class ByKeyword(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 4, batch_first=True)

    def forward(self, x, state):
        return self.layer(input=x, hx=state)[0]


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_recurrent_layers_called_by_keyword(kind, tmp_path):
    model, inputs = ByKeyword(kind).eval(), (torch.randn(2, 5, 3), torch.randn(1, 2, 4))
    save(model, tmp_path / "a", example_inputs=inputs)
    assert torch.equal(load(tmp_path / "a")(*inputs), model(*inputs))
