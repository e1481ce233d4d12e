"""Compaction changes nothing, on any model, wherever the gates are and whatever they have pruned."""

import functools
import warnings

import pytest
import torch
from gallery import GALLERY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import bayesprune as bp

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
OWN_BATCH = {"vit_matmul", "static_batch_view"}
"""Written for one size of the batch."""


def to_dtype(inputs, dtype):
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs)


@functools.cache
def gated_once(name, before_norm, dtype):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval().to(dtype)
    inputs = to_dtype(GALLERY[name].inputs(), dtype)
    return bp.sparsify(model, "bb", example_inputs=inputs, before_norm=before_norm), inputs


def other_inputs(name, dtype, seed):
    """Fresh inputs, of another batch size where the model takes it."""
    torch.manual_seed(seed)
    inputs = GALLERY[name].inputs()
    if name not in OWN_BATCH:
        inputs = tuple(torch.cat((each, each.flip(0)))[:5] for each in inputs)
    return to_dtype(inputs, dtype)


def draw_masks(data, gated, set_gate):
    """Keep everything, nothing, one unit or a random part of each gate."""
    for number, gate in enumerate(bp.gates(gated).values()):
        kind = data.draw(st.sampled_from(["random", "random", "none", "all", "single"]), label="kept")
        seed = data.draw(st.integers(0, 2**16), label="seed") + number
        kept = torch.rand(gate.num_units, generator=torch.Generator().manual_seed(seed)) < 0.5
        if kind in ("none", "all"):
            kept[:] = kind == "all"
        elif kind == "single":
            kept = torch.arange(gate.num_units) == seed % gate.num_units
        set_gate(gate, kept.tolist(), seed)


def check(name, gated, inputs, dtype, difference, seed=1):
    """The promises of `compact`, one by one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.BayespruneWarning)
        result = bp.compact(gated, inputs)
    certificate = result.certificate
    assert certificate.note == "" or name == "functional_control_flow"  # Which branches on the size of its input.
    assert certificate.max_rel_error <= BOUNDS[dtype]
    fresh = other_inputs(name, dtype, seed)
    with torch.no_grad():
        assert difference(gated.eval()(*fresh), result.model.eval()(*fresh)) <= BOUNDS[dtype]
    assert result.kept == {each: int(gate.keep().sum()) for each, gate in bp.gates(gated).items()}
    for module in list(result.model.modules())[1:]:
        assert type(module).__module__.startswith("torch.nn"), module
    assert certificate.masks_left == ()
    assert certificate.after.parameters == sum(parameter.numel() for parameter in result.model.parameters())
    assert certificate.after.parameters <= certificate.before.parameters + sum(gate.num_units for gate in bp.gates(gated).values())
    return result


@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", GALLERY)
def test_exact_with_random_masks(name, before_norm, set_gate, difference):
    @settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # shrinking takes minutes
    @given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64]))
    def exact(data, dtype):
        gated, inputs = gated_once(name, before_norm, dtype)
        draw_masks(data, gated, set_gate)
        check(name, gated, inputs, dtype, difference)

    exact()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", GALLERY)
def test_exact_with_many_random_masks(name, before_norm, dtype, set_gate, difference):
    @settings(max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # shrinking takes minutes
    @given(data=st.data())
    def exact(data):
        gated, inputs = gated_once(name, before_norm, dtype)
        draw_masks(data, gated, set_gate)
        check(name, gated, inputs, dtype, difference)

    exact()


@pytest.mark.parametrize("name", GALLERY)
def test_everything_pruned_leaves_a_network_that_still_runs(name, set_gates, difference):
    gated, inputs = gated_once(name, False, torch.float64)
    result = check(name, set_gates(gated, 1.1), inputs, torch.float64, difference)
    assert result.certificate.after.parameters < result.certificate.before.parameters


@pytest.mark.parametrize("name", ["resnet_bottleneck", "mobilenet_v2", "vit_own", "unet", "transformer_encoder", "lstm_tail"])
def test_what_is_left_runs_and_learns_in_training_mode(name, set_gates):
    gated, inputs = gated_once(name, False, torch.float32)
    model = bp.compact(set_gates(gated, 0.5), inputs).model.train()
    target = torch.randn_like(model.eval()(*inputs).detach())
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = (model(*inputs) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        missing = [path for path, parameter in model.named_parameters() if parameter.grad is None]
        assert not missing
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), bp.compact(gated, inputs).model.parameters(), strict=True))


def test_the_gated_model_is_not_changed(set_gates):
    gated, inputs = gated_once("resnet_basic", True, torch.float32)
    set_gates(gated, 0.5).train()
    state = {name: value.clone() for name, value in gated.state_dict().items()}
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in gated.modules()]
    result = bp.compact(gated, inputs)
    assert gated.training
    assert result.model.training
    assert all(torch.equal(value, state[name]) for name, value in gated.state_dict().items())
    assert [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in gated.modules()] == hooks
    assert not {p.data_ptr() for p in result.model.parameters()} & {p.data_ptr() for p in gated.parameters()}


def test_an_image_of_another_size():
    """A network that is convolutional throughout is so afterwards."""
    gated, inputs = gated_once("unet", False, torch.float64)
    for gate in bp.gates(gated).values():
        with torch.no_grad():
            gate.raw_a.copy_(torch.where(torch.arange(gate.num_units) % 3 == 0, -20.0, 2.0))
    model, x = bp.compact(gated, inputs).model.eval(), torch.randn(1, 1, 24, 40, dtype=torch.float64)
    torch.testing.assert_close(model(x), gated.eval()(x), rtol=1e-12, atol=1e-12)
