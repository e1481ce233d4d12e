"""Every registered method: what it refuses, and in which words."""

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

from bayesprune.errors import BayespruneError, InputError
from bayesprune.gates import METHODS, Gate, method_class

POSITIVE = ("threshold", "temperature", "alpha", "beta", "length_scale", "entropy_weight", "prior_std", "momentum")


def constructor(method):
    return inspect.signature(METHODS[method].__init__).parameters


def positive_hyper_parameters():
    """Those of all methods; not VIB's threshold, which is on a logarithm."""
    return [(m, name) for m in sorted(METHODS) for name in POSITIVE if name in constructor(m) and (m, name) != ("vib", "threshold")]


def test_errors_are_of_one_family():
    assert issubclass(InputError, BayespruneError)
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize("shape", [(6,), (2, 6, 1, 1, 1, 1)])
def test_inputs_of_too_few_or_too_many_dimensions(make_gate, shape):
    with pytest.raises(InputError, match=r"2 to 5 dimensions.*\(") as caught:
        make_gate()(torch.zeros(shape))
    assert str(tuple(shape)) in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 5), (6, 2), (2, 7, 6, 6)])
def test_the_wrong_number_of_channels(make_gate, shape):
    with pytest.raises(InputError, match=r"6 channels in dimension 1") as caught:
        make_gate()(torch.zeros(shape))
    assert str(shape) in str(caught.value)


def test_the_wrong_number_of_channels_last(make_gate):
    with pytest.raises(InputError, match=r"6 channels in dimension -1"):
        make_gate(channel_dim=-1)(torch.zeros(2, 6, 5))


def test_groups_that_do_not_fit_the_input(make_gate):
    gate = make_gate(2, groups=torch.tensor([[0, 1, 1], [1, 0, 0]]))
    assert gate(torch.zeros(4, 2, 3)).shape == (4, 2, 3)
    for shape in [(4, 3, 3), (4, 2, 3, 1), (4, 2)]:
        with pytest.raises(InputError, match=r"groups of shape \(2, 3\) do not fit"):
            gate(torch.zeros(shape))


def test_a_negative_number_of_units(method):
    with pytest.raises(InputError, match=r"cannot have -1 units"):
        METHODS[method](-1)


@pytest.mark.parametrize("channel_dim", [0, 2, -2, 1.0, -1.0, True])
def test_a_channel_dimension_that_is_not_supported(method, channel_dim):
    with pytest.raises(InputError, match=r"channel_dim is 1, or -1"):
        METHODS[method](3, channel_dim=channel_dim)


@pytest.mark.parametrize("groups", [torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor(0)])
def test_groups_that_name_no_unit(method, groups):
    with pytest.raises(InputError, match=r"groups must name units from 0 to 2"):
        METHODS[method](3, groups=groups)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_hyper_parameters_that_are_not_finite(method, value):
    for name, parameter in constructor(method).items():
        if isinstance(parameter.default, float):
            with pytest.raises(InputError, match=name) as caught:
                METHODS[method](3, **{name: value})
            assert str(value) in str(caught.value)


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize(("method", "name"), positive_hyper_parameters())
def test_hyper_parameters_that_must_be_positive(method, name, value):
    with pytest.raises(InputError, match=f"{name} must be a (finite number above zero|number between 0 and 1), not {value}"):
        METHODS[method](3, **{name: value})


@pytest.mark.parametrize("value", [1.0, 5, "a"])
@pytest.mark.parametrize("method", ["bb", "dbb", "gd"])
def test_a_threshold_on_a_probability_is_one(method, value):
    with pytest.raises(InputError, match=f"threshold must be a number between 0 and 1, not {value!r}"):
        METHODS[method](3, threshold=value)


@pytest.mark.parametrize("name", ["price", "precision"])
def test_a_price_cannot_be_negative(name):
    with pytest.raises(InputError, match=name):
        METHODS["l0"](3, **{name: -1.0})


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_layer_that_does_not_fit_the_units(make_gate, side):
    gate = make_gate()
    for layer in (nn.Linear(5, 7), nn.ReLU(), nn.BatchNorm1d(6)):
        with pytest.raises(InputError, match=rf"6 channels cannot control the {side}"):
            gate.control(layer, side)


def test_a_penalty_on_weights_needs_a_layer(method):
    gate = METHODS[method](3)
    if not gate.penalises_weights:
        assert gate.kl().isfinite()
        return
    with pytest.raises(InputError, match=r"control.*sparsify"):
        gate.kl()


@pytest.mark.parametrize(("typed", "meant"), [("BB", "bb"), ("ddb", "dbb"), ("sbq", "sbp"), ("l1", "l0"), ("vibe", "vib")])
def test_an_unknown_method_gets_a_suggestion(typed, meant):
    with pytest.raises(InputError, match=rf"unknown method '{typed}'.*{', '.join(sorted(METHODS))}.*Did you mean '{meant}'\?"):
        method_class(typed)


@pytest.mark.parametrize("given", ["magnitude", [], {}, None])
def test_an_unknown_method_without_a_likeness_gets_none(given):
    with pytest.raises(InputError, match="unknown method") as caught:
        method_class(given)
    assert "Did you mean" not in str(caught.value)


def test_a_method_registers_itself_where_it_is_defined():
    try:

        class Example(METHODS["vib"]):
            method = "example"

        assert method_class("example") is Example

        class Variant(Example):
            """Has no key of its own, so it replaces nothing."""

        assert METHODS["example"] is Example
    finally:
        METHODS.pop("example", None)


def test_a_gate_must_keep_every_promise():
    class Incomplete(Gate):
        def kl(self):
            return torch.zeros(())

    with pytest.raises(TypeError, match="abstract"):
        Incomplete(3)


def test_numbers_of_numpy_are_numbers_and_truth_values_are_none():
    assert METHODS["bb"](3, alpha=np.float32(1e-4)).alpha == pytest.approx(1e-4)
    with pytest.raises(InputError, match="alpha"):
        METHODS["bb"](3, alpha=True)
