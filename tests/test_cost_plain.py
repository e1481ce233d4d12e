from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bayesprune.cost import PlainCost, gate_units, plain_cost
from bayesprune.errors import InputError
from bayesprune.models import LeNet5Caffe, LeNet500300, VGGLike

LENET5 = LeNet5Caffe().layers()


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def counted_macs(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-accumulates of a real forward, from the shapes that hooks see."""
    total = 0

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        weight = module.get_parameter("weight")
        total += weight[0].numel() * output[0].numel()

    handles = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    return total


@pytest.mark.parametrize("model", [LeNet500300(), LeNet5Caffe(), VGGLike(), VGGLike(100), VGGLike(groups=((3, 4), (5,)), hidden=6)])
def test_full_networks_match_the_modules(model: Any) -> None:
    assert plain_cost(model.layers()) == PlainCost(counted_macs(model, model.input_shape), parameters(model))


@pytest.mark.parametrize(
    ("large", "kept", "small"),
    [
        (LeNet500300(), (100, 20, 30), LeNet500300(widths=(20, 30), input_shape=(100,))),
        (LeNet5Caffe(), (7, 17, 17 * 16, 56), LeNet5Caffe(channels=(7, 17), hidden=56)),
        (
            VGGLike(100),
            (9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 5, 6),
            VGGLike(100, groups=((9, 8), (7, 6), (5, 4, 3), (2, 1, 2), (3, 4, 5)), hidden=6),
        ),
    ],
)
def test_pruned_costs_what_a_network_built_that_small_does(large: Any, kept: tuple[int, ...], small: Any) -> None:
    assert plain_cost(large.layers(), kept) == PlainCost(counted_macs(small, small.input_shape), parameters(small))


def test_flattened_inputs_follow_their_own_gate() -> None:
    assert plain_cost(LENET5, (7, 17, 64, 38)).parameters == (25 * 7 + 7) + (25 * 7 * 17 + 17) + (64 * 38 + 38) + (38 * 10 + 10)


def test_dependent_gates_compute_kept_outputs_from_used_inputs() -> None:
    kept, used = (7, 17, 132, 56), (6.5, 12.25, 64.0, 38.0)
    cost = plain_cost(LENET5, kept, used)
    assert cost.macs == round(25 * 7 * 576 + 25 * 6.5 * 17 * 64 + 64.0 * 56 + 38.0 * 10)
    assert cost.parameters == plain_cost(LENET5, kept).parameters + 2 * sum(kept)


def test_nothing_kept_leaves_the_biases_of_the_classifier() -> None:
    assert plain_cost(LENET5, (0, 0, 0, 0)) == PlainCost(macs=0, parameters=10)


@given(st.tuples(*(st.integers(0, units) for units in gate_units(LENET5))), st.integers(0, 3))
def test_keeping_more_never_costs_less(kept: tuple[int, ...], gate: int) -> None:
    more = list(kept)
    more[gate] = gate_units(LENET5)[gate]
    less_cost, more_cost = plain_cost(LENET5, kept), plain_cost(LENET5, more)
    assert less_cost.macs <= more_cost.macs
    assert less_cost.parameters <= more_cost.parameters


@pytest.mark.parametrize(("kept", "used"), [((1, 2, 3), None), ((1, 2, 3, 501), None), ((1, 2, 3, 4), (1, 2, 3, 5)), (None, (1, 1, 1, 1))])
def test_bad_counts(kept: Any, used: Any) -> None:
    with pytest.raises(InputError):
        plain_cost(LENET5, kept, used)
