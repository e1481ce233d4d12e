"""Threads, copies, other types, other weights and gradients: adaptive models in use."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gallery import GALLERY
from per_input_networks import NETWORK_WAYS, adapt, difference, force, from_gallery, more, outputs, sparse

import bayesprune as bp
from bayesprune.adaptive.choice import Line


@pytest.mark.parametrize("needed", ["some", "none"])
def test_threads_get_what_one_gets(needed):
    staged, inputs = from_gallery("lenet5", needed=needed)
    adaptive = adapt(staged, inputs)
    batches = [more(inputs, size, seed) for seed in range(12) for size in (1, 5)]
    for way in NETWORK_WAYS:
        force(adaptive, way, 1, 5)
        expected = [outputs(adaptive, batch) for batch in batches]
        for layer in adaptive.layers:
            layer.slices.clear()
        adaptive._settled.clear()
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda batch: outputs(adaptive, batch), 3 * batches))
        assert all(a.equal(b) for a, b in zip(got, 3 * expected, strict=True)), way


@pytest.mark.parametrize("way", NETWORK_WAYS)
def test_a_copy_computes_the_same_and_shares_nothing(way):
    staged, inputs = from_gallery("lenet5")
    adaptive = force(adapt(staged, inputs), way, 3)
    expected = outputs(adaptive, inputs)
    copied = copy.deepcopy(adaptive)
    with torch.no_grad():
        for parameter in adaptive.parameters():
            parameter.zero_()
    for layer in adaptive.layers:
        layer.refresh()
    assert not outputs(adaptive, inputs).equal(expected)
    assert outputs(copied, inputs).equal(expected)


def test_a_copy_can_plan_and_be_moved(lines, monkeypatch):
    lines(full=1.0, look=0.0, gather=Line(0.0, 0.0))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    staged, inputs = from_gallery("lenet5")
    copied = copy.deepcopy(adapt(staged, inputs, 1))
    assert copied.plan(3).adaptive
    assert difference(outputs(staged, inputs), outputs(copied, inputs)) <= 1e-5
    doubled = outputs(copied.double(), tuple(each.double() for each in inputs))
    assert difference(outputs(staged, inputs), doubled.float()) <= 1e-5


@pytest.mark.parametrize("name", ["lenet5", "mlp", "vit_own", "tied_weights", "conv1d"])
def test_other_types_follow(name):
    staged, single = from_gallery(name)
    adaptive = adapt(staged, single).double()
    double = tuple(each.double() if each.is_floating_point() else each for each in single)
    assert [each.dtype for each in adaptive.example] == [each.dtype for each in double]
    expected = outputs(copy.deepcopy(staged).double(), double)
    assert expected.dtype == torch.float64
    for way in NETWORK_WAYS:  # Gates were moved into weights in single precision.
        assert difference(expected, outputs(force(adaptive, way, 3), double)) <= 1e-6, way
    adaptive.to(torch.float32)
    for way in NETWORK_WAYS:
        assert difference(outputs(staged, single), outputs(force(adaptive, way, 3), single)) <= 1e-5, way


def test_plans_are_made_anew_after_a_move(lines, monkeypatch):
    lines(full=1.0, look=0.0, gather=Line(0.0, 0.0))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs, 1, 3)
    before = adaptive.plans[3]
    adaptive.double()
    assert set(adaptive.plans) == set(adaptive._programs) == {1, 3}
    assert adaptive.plans[3] is not before
    assert difference(outputs(copy.deepcopy(staged).double(), (inputs[0].double(),)), outputs(adaptive, (inputs[0].double(),))) <= 1e-6


def test_a_network_of_constants_can_be_moved():
    staged, inputs = from_gallery("mlp_functional", kept="none")
    adaptive = adapt(staged, inputs, 1).double()
    assert outputs(adaptive, (inputs[0].double(),)).dtype == torch.float64


def test_channels_last():
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs).to(memory_format=torch.channels_last)
    x = inputs[0].contiguous(memory_format=torch.channels_last)
    for way in NETWORK_WAYS:
        assert difference(outputs(staged, inputs), outputs(force(adaptive, way, 3), (x,))) <= 1e-5, way


@pytest.mark.parametrize("part", ["", "compacted."], ids=["whole", "compacted"])
def test_loaded_weights_are_used(part):
    staged, inputs = from_gallery("lenet5")
    torch.manual_seed(7)
    other = sparse(GALLERY["lenet5"].build(), inputs)
    adaptive, source = adapt(staged, inputs, 3), adapt(other, inputs)
    outputs(force(adaptive, "gather", 3), inputs)  # Keeps some of the weights.
    loaded = {name: tensor for name, tensor in source.state_dict().items() if name.startswith(part)}
    adaptive.load_state_dict(loaded, strict=not part)
    assert list(adaptive.plans) == [3]
    for way in NETWORK_WAYS:
        force(adaptive, way, 1, 3)
        for size in (1, 3):
            batch = more(inputs, size)
            assert difference(outputs(other, batch), outputs(adaptive, batch)) <= 1e-5, way


@pytest.mark.parametrize("assign", [False, True])
def test_a_known_result_does_not_outlive_the_weights(assign):
    staged, inputs = from_gallery("lenet5", needed="none")
    adaptive = force(adapt(staged, inputs), "gather", 3)
    before = outputs(adaptive, inputs)
    state = {name: tensor.clone() for name, tensor in adaptive.state_dict().items()}
    for name, tensor in state.items():
        if name.endswith(".bias"):
            tensor += 1.0
    adaptive.load_state_dict(state, assign=assign)
    force(adaptive, "gather", 3)
    assert not torch.allclose(outputs(adaptive, inputs), before)
    assert difference(outputs(adaptive.plain, inputs), outputs(adaptive, inputs)) <= 1e-6


def gradient(model, x):
    x = x.clone().requires_grad_()
    model(x).square().sum().backward()
    return x.grad


@pytest.mark.parametrize("name", ["lenet5", "mlp_functional", "transformer_encoder"])
def test_gradients_for_inputs_are_those_of_the_compacted_network(name):
    staged, inputs = from_gallery(name, torch.float64)
    adaptive = adapt(staged, inputs)
    for size in (1, 5):
        (x,) = more(inputs, size)
        expected = gradient(adaptive.compacted, x)
        assert expected.any()
        for way in NETWORK_WAYS:
            force(adaptive, way, size)
            with torch.inference_mode():
                adaptive(x)  # What is kept of this must not be in the way.
            assert difference(expected, gradient(adaptive, x)) <= 1e-12, way


@pytest.mark.parametrize("needed", ["all", "none", "mixed"])
def test_gradients_are_those_of_the_masked_model_where_masks_are_flat(needed):
    """Elsewhere they differ: the masked model takes masks for constants."""
    staged, (x,) = from_gallery("lenet5", torch.float64, needed=needed, seed=4)
    for gate in bp.gates(staged).values():
        gate.scale.data.fill_(1e-12)
    adaptive = adapt(staged, x)
    for way in NETWORK_WAYS:
        force(adaptive, way, 3)
        for _ in range(2):  # The second time too, if the result is known.
            assert difference(gradient(staged, x), gradient(adaptive, x)) <= 1e-9, way
