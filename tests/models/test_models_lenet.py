from typing import Any

import pytest
import torch

from bayesprune.errors import InputError
from bayesprune.models import LeNet5Caffe, LeNet500300


def test_mlp_takes_images_and_flat_inputs() -> None:
    model = LeNet500300()
    x = torch.rand(4, *model.input_shape)
    assert model(x).shape == (4, 10)
    assert torch.equal(model(x), model(x.reshape(4, 784)))


def test_mlp_computes_what_the_paper_describes() -> None:
    model = LeNet500300(num_classes=3, widths=(7, 5), input_shape=(2, 3))
    x = torch.rand(4, 6)
    hidden = torch.relu(torch.relu(x @ model.fc1.weight.T + model.fc1.bias) @ model.fc2.weight.T + model.fc2.bias)
    assert torch.allclose(model(x), hidden @ model.fc3.weight.T + model.fc3.bias, atol=1e-6)


def test_mlp_gates_are_on_the_inputs_of_the_linear_layers() -> None:
    places = LeNet500300().gate_places()
    assert [(place.site, place.side, place.units) for place in places] == [
        ("fc1", "input", 784),
        ("fc2", "input", 500),
        ("fc3", "input", 300),
    ]
    assert all(place.controls == place.site and place.controls_dim == "inputs" for place in places)
    assert places[0].name == "fc1.input_gate"


def test_lenet5_shapes_and_gates() -> None:
    model = LeNet5Caffe()
    assert model(torch.rand(2, *model.input_shape)).shape == (2, 10)
    places = model.gate_places()
    assert [place.name for place in places] == ["conv1.output_gate", "conv2.output_gate", "fc1.input_gate", "fc2.input_gate"]
    assert [place.units for place in places] == [20, 50, 800, 500]
    assert [place.controls_dim for place in places] == ["outputs", "outputs", "inputs", "inputs"]


def test_lenet5_small_widths() -> None:
    model = LeNet5Caffe(num_classes=4, channels=(3, 2), hidden=6)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 4)
    assert [place.units for place in model.gate_places()] == [3, 2, 32, 6]


@pytest.mark.parametrize("model", [LeNet500300(widths=(4, 3)), LeNet5Caffe(channels=(2, 2), hidden=3)])
def test_without_norm_the_places_do_not_depend_on_it(model: Any) -> None:
    assert model.gate_places(before_norm=True) == model.gate_places()


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_classes": 0},
        {"widths": (5,)},
        {"widths": 5},
        {"widths": (5, -1)},
        {"widths": (5, 2.5)},
        {"input_shape": ()},
        {"input_shape": (0, 4)},
    ],
)
def test_bad_mlp_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LeNet500300(**arguments)


@pytest.mark.parametrize(
    "arguments", [{"num_classes": -1}, {"channels": (1, 2, 3)}, {"channels": 20}, {"channels": (0, 2)}, {"hidden": True}]
)
def test_bad_lenet5_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LeNet5Caffe(**arguments)
