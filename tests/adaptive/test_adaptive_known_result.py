"""Where no unit is needed the result is known, and handed out as if it had been computed."""

import pytest
import torch
from per_input_networks import adapt, difference, force, from_gallery, more, outputs

import bayesprune as bp
from bayesprune.adaptive.model import _MOST_SETTLED
from bayesprune.example_inputs import tensors_in


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", ["lenet5", "unet", "multi_head_outputs", "two_inputs"])
def test_the_known_result_is_fresh_each_time(name, size):
    staged, inputs = from_gallery(name, needed="none")
    adaptive = force(adapt(staged, inputs), "gather", size)
    batch = more(inputs, size)
    expected = outputs(staged, batch)
    for _ in range(3):
        result = outputs(adaptive, batch)
        assert difference(expected, result) <= 1e-5
        for tensor in tensors_in(result):
            tensor.fill_(7.0)
    assert len(adaptive._settled) == any(layer.decides for layer in adaptive.layers)


def test_the_known_result_has_the_size_of_the_input():
    staged, inputs = from_gallery("unet", needed="none")
    adaptive = force(adapt(staged, inputs), "gather", 1, 2)
    for shape in [(1, 1, 16, 16), (2, 1, 16, 16), (1, 1, 24, 40), (2, 1, 8, 8), (1, 1, 16, 16)]:
        x = torch.randn(shape)
        assert difference(outputs(staged, (x,)), outputs(adaptive, (x,))) <= 1e-5


def test_known_results_do_not_pile_up():
    staged, inputs = from_gallery("unet", needed="none")
    adaptive = force(adapt(staged, inputs), "gather", 1)
    for width in range(4, 4 * (_MOST_SETTLED + 4), 4):
        outputs(adaptive, (torch.randn(1, 1, 4, width),))
        assert len(adaptive._settled) <= _MOST_SETTLED
    assert difference(outputs(staged, inputs), outputs(adaptive, inputs)) <= 1e-5


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_known_result_can_be_used_in_any_mode(mode):
    staged, inputs = from_gallery("lenet5", needed="none")
    adaptive = force(adapt(staged, inputs), "gather", 3)
    with mode():
        adaptive(*inputs)
    weight = torch.ones(10, requires_grad=True)
    (adaptive(*inputs) * weight).sum().backward()
    assert torch.allclose(weight.grad, outputs(staged, inputs).sum(dim=0), rtol=1e-4)


def test_an_input_that_needs_something_is_computed_after_all():
    """Whatever was remembered for others of its size."""
    staged, inputs = from_gallery("mlp_functional", kept="all")
    gate = next(iter(bp.gates(staged).values()))
    with torch.no_grad():
        gate.shift.fill_(-3.0)
        gate.running_mean.zero_()
    adaptive = force(adapt(staged, inputs), "gather", 1)
    needs = torch.zeros(2, 20)
    needs[1] = 10.0
    assert adaptive.units_needed(needs)[0].tolist() == [0, 20]
    for _ in range(2):
        for row in needs.split(1):
            assert difference(outputs(staged, (row,)), outputs(adaptive, (row,))) <= 1e-5
