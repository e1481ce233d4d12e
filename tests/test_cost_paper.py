import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesprune.cost import gate_units, paper_cost, relative_cost
from bayesprune.errors import InputError
from bayesprune.models import Conv, Dense, Layer, LeNet5Caffe, LeNet500300, MaxPool, VGGLike

MLP = LeNet500300().layers()
LENET5 = LeNet5Caffe().layers()
VGG = VGGLike().layers()
VGG100 = VGGLike(100).layers()
VGG_KEPT = (24, 61, 103, 112, 107, 82, 51, 50, 59, 30, 35, 33, 63, 79, 87)


@pytest.mark.parametrize(
    ("layers", "flops", "memory"),
    [(MLP, 1_090_800, 545_810), (LENET5, 4_615_940, 477_410), (VGG, 627_329_546, 16_655_818), (VGG100, 627_421_796, 16_701_988)],
)
def test_full_networks(layers: tuple[Layer, ...], flops: int, memory: int) -> None:
    assert paper_cost(layers).flops == flops
    assert paper_cost(layers).memory == memory
    assert paper_cost(layers, gate_units(layers)) == paper_cost(layers)


def test_im2col_share_of_vgg() -> None:
    assert sum(layer.kernel**2 * layer.inputs * layer.height * layer.width for layer in VGG if isinstance(layer, Conv)) == 1_668_096


@pytest.mark.parametrize(
    ("layers", "kept", "speedup", "memory_percent"),
    [
        (MLP, (518, 187, 135), 4.41, 22.68),
        (MLP, (164, 91, 30), 30.28, 3.31),
        (MLP, (148, 116, 127), 16.38, 6.12),
        (MLP, (138, 98, 26), 33.27, 3.02),
        (MLP, (137, 90, 37), 33.89, 2.96),
        (MLP, (288, 114, 65), 13.31, 7.53),
        (MLP, (93, 35, 25), 123.7, 0.82),
        (LENET5, (12, 37, 496, 300), 2.21, 41.29),
        (LENET5, (5, 15, 134, 44), 11.41, 6.45),
        (LENET5, (11, 22, 79, 137), 4.08, 10.61),
        (LENET5, (7, 25, 297, 38), 5.80, 8.77),
        (LENET5, (7, 17, 132, 56), 7.58, 7.70),
        (LENET5, (7, 18, 131, 60), 7.30, 7.85),
        (LENET5, (9, 24, 174, 58), 4.69, 9.46),
        (LENET5, (9, 25, 174, 58), 4.55, 9.51),
        (VGG, VGG_KEPT, 4.42, 8.04),
    ],
)
def test_static_rows(layers: tuple[Layer, ...], kept: tuple[int, ...], speedup: float, memory_percent: float) -> None:
    cost = relative_cost(layers, kept)
    assert round(cost.speedup, 1 if speedup > 100 else 2) == speedup
    assert round(cost.memory_percent, 2) == memory_percent


@pytest.mark.parametrize(
    ("layers", "kept", "used", "speedup", "memory_percent"),
    [
        (MLP, (288, 114, 65), (104, 31, 29), 35.36, 2.97),
        (MLP, (148, 94, 51), (93, 35, 25), 47.07, 2.22),
        (MLP, (154, 101, 33), (93, 35, 25), 47.06, 2.22),
        (LENET5, (7, 17, 132, 56), (7, 17, 64, 38), 7.54, 7.04),
        (LENET5, (7, 18, 132, 56), (7, 17, 64, 38), 7.27, 7.08),
        (LENET5, (9, 24, 174, 58), (9, 23, 61, 32), 4.68, 8.26),
        (LENET5, (9, 25, 174, 58), (9, 23, 61, 32), 4.55, 8.30),
    ],
)
def test_dependent_rows(
    layers: tuple[Layer, ...], kept: tuple[int, ...], used: tuple[int, ...], speedup: float, memory_percent: float
) -> None:
    cost = relative_cost(layers, kept, used)
    assert (round(cost.speedup, 2), round(cost.memory_percent, 2)) == (speedup, memory_percent)
    assert relative_cost(layers, kept, used, published_memory_indexing=True) == cost


def test_dependent_overhead_when_every_unit_is_used() -> None:
    kept = (10, 20, 30)
    static, dependent = paper_cost(MLP, kept), paper_cost(MLP, kept, kept)
    assert dependent.flops - static.flops == 5 * 60 + 10
    assert dependent.memory - static.memory == 4 * 60
    kept5 = (3, 4, 50, 60)
    static, dependent = paper_cost(LENET5, kept5), paper_cost(LENET5, kept5, kept5)
    assert dependent.flops - static.flops == 3 * (2 * 24 * 24 + 4) + 4 * (2 * 8 * 8 + 4) + 5 * 110
    assert dependent.memory - static.memory == 4 * 117


def test_averages_are_floored_as_published_unless_told_otherwise() -> None:
    kept = (148, 94, 51)
    averages = (93.9, 35.5, 25.0)
    assert paper_cost(MLP, kept, averages) == paper_cost(MLP, kept, (93, 35, 25))
    assert paper_cost(MLP, kept, averages, floor=False).flops > paper_cost(MLP, kept, averages).flops


def test_rounding_of_an_average_of_whole_counts_costs_no_unit() -> None:
    kept = (148, 94, 51)
    expected = paper_cost(MLP, kept, (148, 94, 25))
    assert paper_cost(MLP, kept, (148.00001, 93.99999, 24.99999)) == expected


def test_published_memory_of_vgg_is_one_gate_off() -> None:
    n = VGG_KEPT
    d = tuple(count - 3 * (gate % 4) for gate, count in enumerate(n))
    convs = [layer for layer in VGG if isinstance(layer, Conv)]
    expected = 27 * (32 * 32 + n[0]) + 2 * n[0]
    for index in range(1, 13):
        side = convs[index].height
        expected += 9 * d[index] * (side * side + n[index + 1]) + 2 * n[index + 1]
    expected += d[13] * n[14] + n[14] + 2 * d[13] + d[14] * 10 + 10
    expected += 4 * (sum(n[:14]) + n[13])
    published = paper_cost(VGG, n, d, published_memory_indexing=True)
    assert published.memory == expected
    assert published.flops == paper_cost(VGG, n, d).flops
    assert paper_cost(VGG, n, published_memory_indexing=True) == paper_cost(VGG, n)


def test_published_indexing_adds_a_point_or_two_to_a_typical_vgg() -> None:
    kept = (25, 60, 105, 110, 140, 120, 90, 100, 90, 60, 50, 50, 60, 60, 70)
    used = tuple(0.9 * count for count in kept)
    correct = relative_cost(VGG, kept, used).memory_percent
    published = relative_cost(VGG, kept, used, published_memory_indexing=True).memory_percent
    assert 0.5 < published - correct < 2.5


@pytest.mark.parametrize("layers", [MLP, LENET5, VGG])
def test_nothing_kept_leaves_the_biases_and_a_finite_ratio(layers: tuple[Layer, ...]) -> None:
    nothing = [0] * len(gate_units(layers))
    for cost in (relative_cost(layers, nothing), relative_cost(layers, nothing, nothing)):
        assert math.isfinite(cost.speedup)
        assert cost.memory_percent >= 0
        json.dumps(asdict(cost), allow_nan=False)
    assert paper_cost(layers, nothing).flops == (20 if layers is VGG else 10)


def test_a_network_without_operations_or_weights_still_has_a_ratio() -> None:
    gated = (Dense(3, 4, input_gate=0, output_gate=1),)
    assert relative_cost(gated, (0, 0)).speedup == paper_cost(gated).flops
    assert relative_cost((MaxPool(2, 4, 4, gate=0),), (1,)).memory_percent == 0.0


counts_of_mlp = st.tuples(st.integers(0, 784), st.integers(0, 500), st.integers(0, 300))
counts_of_vgg = st.tuples(*(st.integers(0, units) for units in gate_units(VGG)))
fractions = st.floats(0, 1)


@given(counts_of_vgg, st.integers(0, 14), fractions)
def test_keeping_more_never_costs_less(kept: tuple[int, ...], gate: int, fraction: float) -> None:
    more = list(kept)
    more[gate] += round(fraction * (gate_units(VGG)[gate] - kept[gate]))
    less_cost, more_cost = paper_cost(VGG, kept), paper_cost(VGG, more)
    assert less_cost.flops <= more_cost.flops <= paper_cost(VGG).flops
    assert less_cost.memory <= more_cost.memory <= paper_cost(VGG).memory


@given(counts_of_mlp, st.tuples(fractions, fractions, fractions), st.integers(0, 2), st.booleans())
def test_using_more_never_costs_less(kept: tuple[int, ...], shares: tuple[float, ...], gate: int, floor: bool) -> None:
    used = [share * count for share, count in zip(shares, kept, strict=True)]
    more = list(used)
    more[gate] = kept[gate]
    less_cost, more_cost = paper_cost(MLP, kept, used, floor=floor), paper_cost(MLP, kept, more, floor=floor)
    assert less_cost.flops <= more_cost.flops
    assert less_cost.memory <= more_cost.memory


@pytest.mark.parametrize(
    ("kept", "used", "message"),
    [
        ((1, 2), None, "2 counts, but the network has 3 gates"),
        ((1, 2, 3, 4), None, "4 counts"),
        ((-1, 2, 3), None, r"kept\[0\] is -1.0"),
        ((1, 501, 3), None, "a count from 0 to 500"),
        ((1, 2, float("nan")), None, "nan"),
        ((1, 2, float("inf")), None, "inf"),
        ((1, 2, 10**400), None, "one for each gate"),
        ((1, "two", 3), None, "one for each gate"),
        (5, None, "sequence of 3 numbers"),
        ((4, 4, 4), (4, 5, 4), r"dependent_kept\[1\] is 5.0, but kept\[1\] is 4.0"),
        ((4, 4, 4), (4, -0.5, 4), "average from 0"),
        ((4, 4, 4), (4, float("nan"), 4), "nan"),
        ((4, 4, 4), (4, 4), "dependent_kept has 2 counts"),
        (None, (4, 4, 4), "without kept"),
    ],
)
def test_bad_counts(kept: Any, used: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paper_cost(MLP, kept, used)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), "without layers"),
        ((Dense(4, 3, output_gate=0), Dense(5, 2, input_gate=0)), "gate 0 has 3 units"),
        ((Dense(4, 3, output_gate=1),), "number them from 0"),
    ],
)
def test_bad_layers(layers: tuple[Layer, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        relative_cost(layers)
