"""A layer behind a mask gives the same in every way, and takes operations for the units that are needed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from per_input_networks import BOUNDS, WAYS, choice_of, difference, masked
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bayesprune.adaptive.layers import NothingNeeded

UNITS = 8


class Called(nn.Module):
    """A layer behind functions."""

    def __init__(self, layer, *functions):
        super().__init__()
        self.layer, self.functions = layer, functions

    def forward(self, x):
        for function in self.functions:
            x = function(x)
        return self.layer(x)


class Selected(nn.Module):
    """A layer that reads every other channel, last one first."""

    def __init__(self, layer):
        super().__init__()
        self.register_buffer("index", torch.arange(UNITS - 1, -1, -2))
        self.layer = layer

    def forward(self, x):
        return self.layer(F.relu(torch.index_select(x, dim=1, index=self.index)))


CASES = {
    "linear": ((UNITS,), 1, lambda: nn.Linear(UNITS, 5)),
    "linear without bias": ((UNITS,), 1, lambda: nn.Linear(UNITS, 5, bias=False)),
    "linear of tokens": ((4, UNITS), -1, lambda: nn.Linear(UNITS, 5)),
    "linear of as many tokens": ((UNITS, UNITS), -1, lambda: nn.Linear(UNITS, 5)),
    "linear of images": ((3, 2, UNITS), -1, lambda: nn.Linear(UNITS, 5)),
    "linear behind functions": ((UNITS,), 1, lambda: Called(nn.Linear(UNITS, 5), F.relu, lambda x: torch.flatten(x, start_dim=1))),
    "linear behind layers": ((UNITS,), 1, lambda: nn.Sequential(nn.Flatten(), nn.Dropout1d(), nn.Tanh(), nn.Linear(UNITS, 5))),
    "linear of some units": ((UNITS,), 1, lambda: Selected(nn.Linear(UNITS // 2, 5))),
    "linear of flattened images": ((UNITS, 3, 3), 1, lambda: nn.Sequential(nn.Flatten(), nn.Linear(9 * UNITS, 5))),
    "linear of pooled images": (
        (UNITS, 7, 6),
        1,
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2 * UNITS, 5)),
    ),
    "convolution": ((UNITS, 6, 6), 1, lambda: nn.Conv2d(UNITS, 5, 3)),
    "convolution without bias": ((UNITS, 6, 6), 1, lambda: nn.Conv2d(UNITS, 5, 1, bias=False)),
    "convolution with all options": ((UNITS, 9, 8), 1, lambda: nn.Conv2d(UNITS, 5, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 1))),
    "convolution that keeps the size": ((UNITS, 6, 6), 1, lambda: nn.Conv2d(UNITS, 5, 4, padding="same")),
    "convolution behind layers": ((UNITS, 6, 6), 1, lambda: nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(UNITS, 5, 3))),
    "convolution of some units": ((UNITS, 6, 6), 1, lambda: Selected(nn.Conv2d(UNITS // 2, 5, 3))),
    "convolution of a series": ((UNITS, 9), 1, lambda: nn.Conv1d(UNITS, 5, 3, stride=2)),
    "convolution of a volume": ((UNITS, 4, 4, 4), 1, lambda: nn.Conv3d(UNITS, 5, 3, padding=1)),
}


def parts_of(case, dtype=torch.float32, seed=0):
    shape, channel_dim, following = CASES[case]
    torch.manual_seed(seed)
    return masked(torch.randn(2, *shape, dtype=dtype), channel_dim, following().to(dtype))


def mask_of(batch, share, seed, dtype=torch.float32):
    """Masks of which about a share of the units are needed."""
    torch.manual_seed(seed)
    mask = torch.rand(batch, UNITS, dtype=dtype).clamp(min=0.01)
    return torch.where(torch.rand(batch, UNITS) < share, mask, 0.0)


@pytest.mark.parametrize("case", CASES)
def test_every_way_gives_the_same(case):
    cached = {dtype: parts_of(case, dtype) for dtype in BOUNDS}

    @settings(max_examples=12)
    @given(
        dtype=st.sampled_from(list(BOUNDS)), batch=st.integers(1, 65), share=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 999)
    )
    def same(dtype, batch, share, seed):
        parts = cached[dtype]
        (layer,) = parts.layers
        mask = mask_of(batch, share, seed, dtype)
        x = torch.randn(batch, *CASES[case][0], dtype=dtype)
        expected = parts.network(x, mask)
        for way in WAYS:
            layer.choices[batch] = choice_of(way, layer, batch)
            layer.decides = False
            assert difference(expected, layer(x, mask)) <= BOUNDS[dtype], way

    same()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(5, 1), (2, 3, 1)])
def test_a_single_unit_of_tokens_is_the_last_dimension(shape, way):
    """Its mask has the shape of any other's with one unit."""
    parts = masked(torch.randn(2, *shape), -1, nn.Linear(1, 4))
    (layer,) = parts.layers
    layer.choices[3] = choice_of(way, layer, 3)
    x, mask = torch.randn(3, *shape), torch.tensor([[0.5], [0.0], [0.9]])
    assert difference(parts.network(x, mask), layer(x, mask)) <= 1e-5


@pytest.mark.parametrize("needed", [0, 1, 3, UNITS])
@pytest.mark.parametrize(
    ("case", "way"),
    [
        *(
            (case, "gather")
            for case in ("linear", "linear of tokens", "linear of flattened images", "convolution", "convolution of a volume")
        ),
        ("convolution", "product"),
        ("convolution with all options", "product"),
    ],
)
def test_operations_are_in_proportion_to_the_units_that_are_needed(case, way, needed):
    parts = parts_of(case)
    (layer,) = parts.layers
    x, mask = torch.randn(1, *CASES[case][0]), (torch.arange(UNITS) < needed).float()[None]
    with FlopCounterMode(display=False) as whole:
        parts.network(x, mask)
    layer.choices[1] = choice_of(way, layer, 1)
    layer.decides = False
    with FlopCounterMode(display=False) as part:
        layer(x, mask)
    assert whole.get_total_flops() > 0
    assert part.get_total_flops() * UNITS == whole.get_total_flops() * max(needed, 1)  # One of zeros, where none is needed.


def test_operations_of_groups_are_those_of_each_group():
    parts = parts_of("convolution")
    (layer,) = parts.layers
    mask = torch.zeros(4, UNITS)
    mask[:3, :2] = mask[3, 2:7] = 0.5
    x = torch.randn(4, UNITS, 6, 6)
    counted = {}
    for way in ("groups", "gather", "full"):
        layer.choices[4] = choice_of(way, layer, 4)
        with FlopCounterMode(display=False) as counter:
            layer(x, mask)
        counted[way] = counter.get_total_flops()
    of_a_unit = counted["full"] // (4 * UNITS)
    assert counted["gather"] == 4 * 7 * of_a_unit
    assert 0 <= counted["groups"] - (3 * 2 + 1 * 5) * of_a_unit < of_a_unit  # A little is for finding the groups.


@pytest.mark.parametrize("batch", [1, 3])
def test_nothing_needed_is_told_only_where_it_decides(batch):
    (layer,) = parts_of("convolution").layers
    assert layer.decides
    layer.choices[batch] = choice_of("gather", layer, batch)
    x, nothing = torch.randn(batch, UNITS, 6, 6), torch.zeros(batch, UNITS)
    with pytest.raises(NothingNeeded):
        layer(x, nothing)
    layer.decides = False
    assert difference(layer.layer.bias.view(1, 5, 1, 1).expand(batch, 5, 4, 4), layer(x, nothing)) <= 1e-5


def test_a_batch_of_which_one_input_needs_a_unit_decides_nothing():
    parts = parts_of("linear")
    (layer,) = parts.layers
    mask = torch.zeros(3, UNITS)
    mask[1, 4] = 1.0
    x = torch.randn(3, UNITS)
    for way in WAYS:
        layer.choices[3] = choice_of(way, layer, 3)
        assert difference(parts.network(x, mask), layer(x, mask)) <= 1e-5


@pytest.mark.parametrize("case", ["linear of tokens", "linear of some units", "convolution"])
def test_weights_that_change_are_taken_over(case):
    parts = parts_of(case)
    (layer,) = parts.layers
    layer.choices[1] = choice_of("gather", layer, 1)
    x, mask = 1.0 + torch.rand(1, *CASES[case][0]), mask_of(1, 0.7, 3)
    before = layer(x, mask)
    with torch.no_grad():
        layer.layer.weight.mul_(-2.0)
    layer.refresh()
    assert difference(parts.network(x, mask), layer(x, mask)) <= 1e-5
    assert not torch.allclose(before, layer(x, mask))


@pytest.mark.parametrize("case", ["linear", "convolution", "convolution of a series", "convolution of a volume"])
def test_types_and_memory_formats_follow_the_layer(case):
    parts = parts_of(case)
    (layer,) = parts.layers
    layer.choices[1] = choice_of("gather", layer, 1)
    x, mask = torch.randn(1, *CASES[case][0]).double(), mask_of(1, 0.7, 3).double()
    with torch.no_grad():
        layer(x.float(), mask.float())  # Slices of the weights as they were must not be used again.
    layer.double()
    assert layer.by_unit.dtype == torch.float64
    assert difference(parts.network.double()(x, mask), layer(x, mask)) <= 1e-12
    if x.ndim == 4:
        layer.to(memory_format=torch.channels_last)
        assert difference(parts.network(x, mask), layer(x.contiguous(memory_format=torch.channels_last), mask)) <= 1e-12


def test_a_copy_has_weights_of_its_own():
    parts = parts_of("convolution")
    (layer,) = parts.layers
    layer.choices[1] = choice_of("gather", layer, 1)
    x, mask = torch.randn(1, UNITS, 6, 6), mask_of(1, 0.7, 3)
    expected = layer(x, mask)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        layer.layer.weight.zero_()
        layer.refresh()
    assert torch.equal(copied(x, mask), expected)
    assert not torch.equal(layer(x, mask), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["linear", "linear of flattened images", "convolution"])
def test_gradients_are_those_of_the_whole(case, way):
    parts = parts_of(case, torch.float64)
    (layer,) = parts.layers
    layer.choices[3] = choice_of(way, layer, 3)
    x = torch.randn(3, *CASES[case][0], dtype=torch.float64)
    mask = mask_of(3, 0.5, 1, torch.float64)
    gradients = []
    for compute in (parts.network, layer):
        inputs = x.clone().requires_grad_()
        compute(inputs, mask).square().sum().backward()
        gradients.append(inputs.grad)
    assert difference(*gradients) <= 1e-12


def test_batches_of_unknown_size_are_computed_in_full():
    parts = parts_of("linear")
    (layer,) = parts.layers
    x, mask = torch.randn(4, UNITS), mask_of(4, 0.0, 0)
    assert torch.equal(layer(x, mask), parts.network(x, mask))  # Nothing is needed, but nobody looked.
