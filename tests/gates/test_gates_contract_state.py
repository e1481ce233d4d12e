"""Every registered method: its state through saving, copying, pickling and changes of precision."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call


def inputs(dtype=torch.float32):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)


def outputs(gated, x):
    """What a gate computes in both modes, its penalty included."""
    with torch.no_grad():
        return [copy.deepcopy(gated).eval()(x), gated.gate.kl(), gated.gate.keep_probability()]


def test_a_state_dict_restores_everything(make_gated):
    saved, other, x = make_gated(seed=0), make_gated(seed=1), inputs()
    assert not torch.equal(outputs(saved, x)[0], outputs(other, x)[0])
    other.load_state_dict(saved.state_dict())
    for ours, theirs in zip(outputs(other, x), outputs(saved, x), strict=True):
        assert torch.equal(ours, theirs)


def test_the_state_is_the_gates_own(make_gated):
    """Neither the controlled layer nor groups nor noise show up in what is saved or trained."""
    gated = make_gated(3, groups=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert not any("layer" in name or "groups" in name or "noise" in name for name in gated.gate.state_dict())
    assert not any(parameter is gated.layer.weight for parameter in gated.gate.parameters())
    assert [name for name in gated.state_dict() if name.startswith("layer")] == ["layer.weight", "layer.bias"]
    assert len(list(gated.parameters())) == len(list(gated.gate.parameters())) + 2


def test_a_copy_controls_the_copied_layer(make_gated):
    gated, x = make_gated(), inputs()
    twin = copy.deepcopy(gated)
    assert twin.gate.controlled[0].layer is twin.layer
    assert gated.gate.controlled[0].layer is gated.layer
    assert twin.state_dict().keys() == gated.state_dict().keys()
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in gated.parameters()}
    before = outputs(gated, x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += 1.0
    for ours, theirs in zip(outputs(gated, x), before, strict=True):
        assert torch.equal(ours, theirs)


def test_pickling(make_gated):
    gated, x = make_gated(), inputs()
    twin = pickle.loads(pickle.dumps(gated))
    assert twin.gate.controlled[0].layer is twin.layer
    for ours, theirs in zip(outputs(twin, x), outputs(gated, x), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(twin.train()(x), gated.train()(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_leaves_the_gates_alone(make_gated, dtype):
    gated = make_gated()
    before = {name: value.clone() for name, value in gated.gate.state_dict().items()}
    groups = make_gated(2, groups=torch.tensor([0, 1, 0, 1, 0, 1])).to(dtype).gate.units.groups
    gated.to(dtype)
    assert gated.layer.weight.dtype == dtype
    assert groups.dtype == torch.int64
    for name, value in gated.gate.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_activations_keep_their_precision(make_gated, dtype, training):
    gated = make_gated().to(dtype).train(training)
    y = gated.gate(inputs(dtype))
    assert y.dtype == dtype
    wide = make_gated().to(torch.float64).train(training).gate(inputs(torch.float64))
    # A float32 gate draws what a float64 gate draws up to rounding, which a temperature of 0.1 enlarges.
    eps = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(y.double(), wide, rtol=10 * eps, atol=100 * eps)


@pytest.mark.parametrize("training", [True, False])
def test_autocast(make_gated, training):
    gated, x = make_gated().train(training), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = gated(x)
        kl = gated.gate.kl()
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), gated(x), rtol=0.05, atol=0.05)
    assert kl.isfinite()
    (y.float().square().mean() + kl / 100).backward()
    assert all(parameter.grad.isfinite().all() for parameter in gated.parameters())


def test_double_precision_and_back(make_gated):
    gated = make_gated().double()
    assert all(value.dtype == torch.float64 for value in gated.gate.state_dict().values())
    assert gated.gate.kl().dtype == torch.float64
    assert all(value.dtype == torch.float32 for value in gated.half().gate.state_dict().values())


def test_moving_keeps_the_noise_of_the_table(make_gated, with_noise):
    """The rows that a module holds stay rows of the table through ``to``, so that setting the table sets the noise."""
    gated = make_gated(keyed=False)
    keys = with_noise(gated)
    gated.to(torch.float64).to("cpu").train()
    x = inputs(torch.float64)
    first = gated(x)
    keys.set(keys.for_steps(1, 1)[0])
    assert not torch.equal(gated(x), first)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_another_type_for_one_call(make_gated, dtype, training):
    """As mixed precision by hand has them; buffers stay what they are."""
    gated = make_gated().train(training)
    expected = copy.deepcopy(gated)(inputs())
    parameters = {name: parameter.to(dtype) for name, parameter in gated.named_parameters()}
    y = functional_call(gated, parameters, (inputs(dtype),))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=0.1, atol=0.3)
    y.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in gated.layer.parameters())
    assert all(buffer.dtype != dtype for buffer in gated.buffers())
