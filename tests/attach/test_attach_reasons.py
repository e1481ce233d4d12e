"""A layer that cannot be gated is left alone with a reason that is true, and the rest of the model is gated."""

import copy

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY, randomise_norms
from torch import nn

import bayesprune as bp
from bayesprune.gates import gates


class Model(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        torch.manual_seed(0)
        self.computation = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.computation(self, x)


IMAGES, FEATURES = torch.randn(3, 3, 8, 8), torch.randn(3, 6)


def option_a(m, x):
    """The shortcut of the CIFAR ResNets without parameters (arXiv:1512.03385, option A)."""
    y = F.relu(m.conv1(x))
    shortcut = F.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
    return m.fc(F.relu(m.conv3(F.relu(m.conv2(y))) + shortcut).mean((2, 3)))


def cases():
    conv = nn.Conv2d
    return {
        "called with a keyword": (
            Model(lambda m, x: m.fc3(F.relu(m.fc2(input=F.relu(m.fc1(x))))), fc1=nn.Linear(6, 8), fc2=nn.Linear(8, 7), fc3=nn.Linear(7, 4)),
            FEATURES,
            {"fc1", "fc3"},
        ),
        "a grouped transposed convolution": (
            nn.Sequential(
                conv(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 8, 4, groups=2), nn.ReLU(), conv(8, 6, 3), nn.ReLU(), conv(6, 4, 3)
            ),
            IMAGES,
            {"4"},
        ),
        "padding of channels": (
            Model(
                option_a,
                conv1=conv(3, 8, 3, padding=1),
                conv2=conv(8, 10, 3, stride=2, padding=1),
                conv3=conv(10, 12, 3, padding=1),
                fc=nn.Linear(12, 4),
            ),
            IMAGES,
            {"conv2"},
        ),
        "a norm without parameters in several places": (
            Model(
                lambda m, x: m.fc(F.relu(m.conv3(F.relu(m.norm(m.conv2(F.relu(m.norm(m.conv1(x)))))))).mean((2, 3))),
                conv1=conv(3, 8, 3),
                conv2=conv(8, 8, 3),
                norm=nn.BatchNorm2d(8, affine=False),
                conv3=conv(8, 7, 3),
                fc=nn.Linear(7, 4),
            ),
            IMAGES,
            {"conv3"},
        ),
        "division by a size": (
            Model(
                lambda m, x: m.fc((F.relu(m.conv2(F.relu(m.conv1(x)))) / x.size(1)).mean((2, 3))),
                conv1=conv(3, 8, 3),
                conv2=conv(8, 7, 3),
                fc=nn.Linear(7, 4),
            ),
            IMAGES,
            {"conv1", "conv2"},
        ),
        "division by the channels": (
            Model(
                lambda m, x: m.fc((lambda y: y / y.size(1))(F.relu(m.conv2(F.relu(m.conv1(x))))).mean((2, 3))),
                conv1=conv(3, 8, 3),
                conv2=conv(8, 7, 3),
                fc=nn.Linear(7, 4),
            ),
            IMAGES,
            {"conv1", "conv2"},
        ),
        "softmax without a dimension": (
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.Softmax()),
            FEATURES,
            {"0", "2"},
        ),
        "a selection by a computed index": (
            Model(
                lambda m, x: m.fc2((lambda y: y.index_select(1, y.sum(0).argsort()))(F.relu(m.fc1(x)))),
                fc1=nn.Linear(6, 8),
                fc2=nn.Linear(8, 4),
            ),
            FEATURES,
            {"fc1"},
        ),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_the_rest_is_gated_and_compacted(name):
    model, x, controlled = cases()[name]
    model, x = randomise_norms(model).double().eval(), x.double()
    gated = bp.sparsify(model, "bb", example_inputs=x).eval()
    assert controlled <= {row.controls.split()[-1] for row in bp.placement(gated).gates}
    with torch.no_grad():
        for gate in gates(gated).values():
            gate.raw_a[::2] = -20.0
    result = bp.compact(gated, x)
    assert result.certificate.note == ""
    assert result.max_rel_error <= 1e-12
    other = torch.randn(5, *x.shape[1:], dtype=torch.float64)
    torch.testing.assert_close(result.model.eval()(other), gated(other), rtol=1e-10, atol=1e-12)


def test_reasons_name_layers_of_the_model_itself():
    for name, example in GALLERY.items():
        torch.manual_seed(0)
        model = example.build()
        paths = {path for path, _ in model.named_modules()}
        gated = bp.sparsify(model, "bb", example_inputs=example.inputs())
        assert all(row.layer in paths for row in bp.placement(gated).left_alone), name


@pytest.mark.parametrize("before_norm", [False, True])
@pytest.mark.parametrize("name", GALLERY)
def test_places_do_not_depend_on_the_numbers_in_layers(name, before_norm):
    """Gates are placed before training as well as after: a scale for each gate must fit both."""
    torch.manual_seed(0)
    trained, inputs = GALLERY[name].build(), GALLERY[name].inputs()
    fresh = copy.deepcopy(trained)
    for module in fresh.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_parameters()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.zeros_(module.weight)
        elif isinstance(getattr(module, "bias", None), nn.Parameter):
            nn.init.zeros_(module.bias)
    places = [list(gates(bp.sparsify(model, "bb", example_inputs=inputs, before_norm=before_norm))) for model in (fresh, trained)]
    assert places[0] == places[1]


def test_a_reason_names_the_operation_that_keeps_the_units_and_not_one_before_it():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.ReLU6(), nn.AvgPool2d(2), nn.Flatten())
    left = {row.layer: row.reason for row in bp.placement(bp.sparsify(model, "bb", example_inputs=IMAGES)).left_alone}
    assert left == {"2": "its units are the network's outputs"}
