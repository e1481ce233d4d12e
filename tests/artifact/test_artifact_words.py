"""Words and layers of plain networks that nothing can be removed from, but that must not keep a network from being saved."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.artifact import load, save
from bayesprune.example_inputs import tensors_in


class Named(NamedTuple):
    maps: torch.Tensor
    sums: list[torch.Tensor]


class Unpooled(nn.Module):
    """A maximum goes back to where it came from, as in SegNet."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.unpool = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x):
        pooled, places = self.pool(self.conv(x))
        return self.unpool(pooled, places)


class Followed(nn.Module):
    """A layer and a function of its result."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.flatten(1).topk(3, dim=1),
        lambda y: Named(y, [y.sum(1)]),
        lambda y: torch.sort(y.flatten(1), dim=1, descending=True)[0],
        lambda y: y.flatten(1).gather(1, y.flatten(1).argmax(1, keepdim=True)),
        lambda y: y.max(keepdims=True, axis=1)[0] + torch.min(y, keepdim=True, dim=1).values,
        lambda y: torch.stack((y.mean((2, 3)).t().t(), y.mean((2, 3)).sum(1).t()[:, None].expand(-1, 4))),
        lambda y: F.local_response_norm(y, 2, alpha=0.1),
        lambda y: F.instance_norm(y, eps=0.1),
        lambda y: torch.einsum("bchw,bdhw,bchw->bcd", y, y, y).to("cpu"),
    ],
    ids=["topk", "named tuple", "sort", "gather", "extremes", "t", "local response norm", "instance norm", "einsum"],
)
@pytest.mark.parametrize("tracer", ["torch.fx", "torch.export"])
def test_functions_of_plain_networks(function, tracer, tmp_path):
    def hidden_from_fx(y):
        return function(y) if y.shape[1] == 4 else y

    torch.manual_seed(0)
    model, x = Followed(function if tracer == "torch.fx" else hidden_from_fx).eval(), torch.randn(2, 3, 8, 8)
    save(model, tmp_path / "model.safetensors", example_inputs=x)
    loaded = load(tmp_path / "model.safetensors")
    for got, expected in zip(tensors_in(loaded(x)), tensors_in(model(x)), strict=True):
        torch.testing.assert_close(got, expected)


def test_unpooling(tmp_path):
    model, x = Unpooled().eval(), torch.randn(2, 3, 8, 8)
    save(model, tmp_path / "model.safetensors", example_inputs=x)
    torch.testing.assert_close(load(tmp_path / "model.safetensors")(x), model(x))
