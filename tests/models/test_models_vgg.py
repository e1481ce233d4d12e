from typing import Any

import pytest
import torch
from torch import nn

from bayesprune.errors import InputError
from bayesprune.models import KeyedDropout, VGGLike

SMALL: dict[str, Any] = {"groups": ((4, 5), (6, 7), (8, 9, 10), (3, 3, 3), (4, 5, 6)), "hidden": 8}


def test_forward_and_backward() -> None:
    model = VGGLike(num_classes=7, **SMALL)
    logits = model(torch.randn(3, *model.input_shape))
    assert logits.shape == (3, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_paper_widths() -> None:
    model = VGGLike()
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [64, 64, 128, 128, 256, 256, 256] + 6 * [512]
    assert (model.fc1.in_features, model.fc1.out_features, model.fc2.out_features) == (512, 512, 10)
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 10)


def test_dropout_rates_and_places() -> None:
    model = VGGLike(**SMALL)
    rates = {path: module.p for path, module in model.named_modules() if isinstance(module, KeyedDropout)}
    expected = {f"features.block{number}.dropout": 0.4 for number in (3, 5, 6, 8, 9, 11, 12)}
    assert rates == {"features.block1.dropout": 0.3, **expected, "fc1_dropout": 0.5, "fc2_dropout": 0.5}
    pools = [path for path, module in model.named_modules() if isinstance(module, nn.MaxPool2d)]
    assert pools == [f"features.block{number}.pool" for number in (2, 4, 7, 10, 13)]


def test_fixed_dropout_switch() -> None:
    torch.manual_seed(0)
    model = VGGLike(**SMALL)
    x = torch.randn(4, 3, 32, 32)
    assert model.fixed_dropout
    assert not torch.equal(model(x), model(x))
    model.fixed_dropout = False
    assert not model.fixed_dropout
    assert torch.equal(model(x), model(x))
    model.fixed_dropout = True
    model.eval()
    assert torch.equal(model(x), model(x))


def test_fifteen_gates_after_relu_by_default_and_before_norm_if_asked() -> None:
    model = VGGLike(**SMALL)
    after, before = model.gate_places(), model.gate_places(before_norm=True)
    assert len(after) == len(before) == 15
    assert (after[0].name, before[0].name) == ("features.block1.relu.output_gate", "features.block1.conv.output_gate")
    assert [place.controls for place in after] == [place.controls for place in before]
    assert [place.units for place in after] == [4, 5, 6, 7, 8, 9, 10, 3, 3, 3, 4, 5, 6, 6, 8]
    assert after[13:] == before[13:]
    assert [place.name for place in after[13:]] == ["fc1.input_gate", "fc2.input_gate"]


def test_fewer_groups_flatten_more_pixels() -> None:
    model = VGGLike(groups=[[2], [3, 4]], hidden=5)
    assert model.fc1.in_features == 4 * 8 * 8
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_classes": 0},
        {"groups": ()},
        {"groups": 6 * ((2,),)},
        {"groups": ((2,), ())},
        {"groups": (64, 64)},
        {"groups": ((2, 0),)},
        {"hidden": 0},
    ],
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        VGGLike(**arguments)
