import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from bayesprune.training.convolutions import as_products


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(1, 5, 5, bias=False),
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.Conv2d(2, 3, 1, stride=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(11, 9), (31, 40)], ids=["few positions", "many positions"])
def test_products_compute_the_convolution(layer, size):
    layer = layer.double()
    x = torch.randn(2, layer.in_channels, *size, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(layer(x))
    expected = torch.autograd.grad((layer(x) * direction).sum(), [x, *layer.parameters()])
    with as_products(layer):
        outputs = layer(x)
        found = torch.autograd.grad((outputs * direction).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(outputs, layer(x))
    torch.testing.assert_close(found, expected)
    assert "_conv_forward" not in vars(layer)


@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize("size", [6, 20])
def test_outputs_lie_as_those_of_the_layer(samples, size):
    layer = nn.Conv2d(2, 3, 3)
    x = torch.randn(samples, 2, size, size)
    with as_products(layer):
        assert layer(x).is_contiguous()
        assert layer(x).shape == (samples, 3, size - 2, size - 2)


@pytest.mark.parametrize("size", [6, 20])
def test_many_models(size):
    models = [nn.Conv2d(2, 3, 3).double() for _ in range(3)]
    parameters, _ = stack_module_state(models)
    x = torch.randn(3, 4, 2, size, size, dtype=torch.float64)
    with as_products(models[0]):
        outputs = vmap(lambda own, each: functional_call(models[0], own, (each,)))(parameters, x)
    torch.testing.assert_close(outputs, torch.stack([model(each) for model, each in zip(models, x, strict=True)]))


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(2, 2, 3, padding="same"), nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1)],
    ids=str,
)
def test_others_are_left_as_they_are(layer):
    with as_products(layer):
        assert "_conv_forward" not in vars(layer)
