import copy
from typing import cast

import pytest
import torch
from torch import Tensor, fx, nn

from bayesprune.cost import gate_units
from bayesprune.errors import InputError
from bayesprune.models import NETWORKS, DescribedModel, LeNet5Caffe, LeNet500300, VGGLike, build_network

SMALL = [
    LeNet500300(widths=(6, 5)),
    LeNet5Caffe(channels=(3, 4), hidden=6),
    VGGLike(groups=((3, 4), (5, 6)), hidden=7),
]


def test_names_give_their_networks() -> None:
    assert {name: type(build_network(name)) for name in NETWORKS} == {
        "lenet-500-300": LeNet500300,
        "lenet5-caffe": LeNet5Caffe,
        "vgg-like": VGGLike,
    }
    assert NETWORKS["vgg-like"].datasets == ("cifar10", "cifar100")
    assert cast(LeNet500300, build_network("lenet-500-300", num_classes=4)).fc3.out_features == 4


def test_unknown_name_lists_the_known_and_suggests_one() -> None:
    with pytest.raises(InputError, match=r"lenet-500-300, lenet5-caffe, vgg-like.*Did you mean 'lenet5-caffe'\?"):
        build_network("lenet5")
    with pytest.raises(InputError, match=r"Did you mean 'vgg-like'\?"):
        build_network("VGG_like")
    with pytest.raises(InputError) as caught:
        build_network("transformer")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("before_norm", [False, True])
def test_places_exist_with_the_stated_units_in_execution_order(model: nn.Module, before_norm: bool) -> None:
    assert isinstance(model, DescribedModel)
    seen: dict[str, tuple[int, int]] = {}

    def record(path: str, x: Tensor, y: Tensor) -> None:
        seen[path] = (x.shape[1], y.shape[1])

    model = copy.deepcopy(model)
    for path, module in model.named_modules():
        module.register_forward_hook(lambda _, inputs, output, path=path: record(path, inputs[0], output))
    model(torch.rand(2, *model.input_shape))
    places = model.gate_places(before_norm)
    order = list(seen)
    assert sorted((place.site for place in places), key=order.index) == [place.site for place in places]
    defined = [path for path, _ in model.named_modules() if path in seen]
    assert sorted((place.site for place in places), key=defined.index) == [place.site for place in places]
    for place in places:
        assert seen[place.site][("input", "output").index(place.side)] == place.units
        assert seen[place.controls][("inputs", "outputs").index(place.controls_dim)] == place.units


@pytest.mark.parametrize("model", SMALL)
def test_layers_and_places_agree_on_the_gates(model: DescribedModel) -> None:
    assert gate_units(model.layers()) == tuple(place.units for place in model.gate_places())


@pytest.mark.parametrize("model", SMALL)
def test_can_be_traced(model: nn.Module) -> None:
    model = copy.deepcopy(model).eval()
    x = torch.rand(2, *cast(DescribedModel, model).input_shape)
    assert torch.equal(fx.symbolic_trace(model)(x), model(x))
