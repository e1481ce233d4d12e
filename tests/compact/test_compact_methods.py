"""Every method's means move into the weights; input-dependent gates become plain operations."""

import warnings

import pytest
import torch
from gallery import GALLERY
from torch import nn

import bayesprune as bp

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}


def build(name, dtype):
    torch.manual_seed(0)
    inputs = tuple(each.to(dtype) if each.is_floating_point() else each for each in GALLERY[name].inputs())
    return GALLERY[name].build().eval().to(dtype), inputs


@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", ["lenet5", "conv1d", "resnet_basic", "transformer_encoder"])
@pytest.mark.parametrize("method", ["bb", "sbp", "vib", "l0", "gd", "cd"])
def test_every_static_method(method, name, before_norm, set_gates, difference):
    model, inputs = build(name, torch.float64)
    gated = set_gates(bp.sparsify(model, method, example_inputs=inputs, before_norm=before_norm), 0.4)
    means = torch.cat([gate.mean_mask(torch.empty(0)).detach() for gate in bp.gates(gated).values()])
    assert (means < 0).any() == (method == "vib"), "only VIB multiplies by negative numbers"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.BayespruneWarning)
        result = bp.compact(gated, inputs)
    assert result.max_rel_error <= 1e-12
    assert result.certificate.masks_left == ()
    fresh = tuple(torch.randn_like(each) for each in inputs)
    assert difference(gated.eval()(*fresh), result.model.eval()(*fresh)) <= 1e-12
    smaller = result.certificate.after.parameters < sum(parameter.numel() for parameter in model.parameters())
    assert smaller == (method != "cd"), "CD keeps everything"


def test_nothing_pruned_is_said_and_nothing_is_lost(difference):
    model, inputs = build("lenet5", torch.float32)
    gated = bp.sparsify(model, "cd", example_inputs=inputs)
    with pytest.warns(bp.BayespruneWarning, match="no unit is under its gate's threshold"):
        result = bp.compact(gated, inputs)
    assert result.certificate.after.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert difference(model(*inputs), result.model.eval()(*inputs)) <= 1e-6


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_network_that_always_says_the_same_is_warned_of(empty, set_gates):
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.rand(4, 6)
    gated = set_gates(bp.sparsify(model, "bb", example_inputs=x), 0.25, seed=0).eval()
    name, gate = list(bp.gates(gated).items())[empty]
    with torch.no_grad():
        gate.raw_a.fill_(-20.0)
    with pytest.warns(bp.BayespruneWarning, match=f"no longer depend on the inputs, because .*{name} keep no unit"):
        result = bp.compact(gated, x)
    assert torch.equal(result.model(x), result.model(torch.rand(4, 6)))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "grouped_conv", "groupnorm_net", "unet", "vit_own", "vit_torch", "swiglu"])
def test_input_dependent_gates(name, dtype, set_gates, scatter_statistics, difference):
    """Whole channels, groups of channels and heads of attention."""
    model, inputs = build(name, dtype)
    gated = scatter_statistics(bp.make_dependent(set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.25, seed=2))).eval()
    masks = {}
    for path, gate in bp.gates(gated).items():
        gate.register_forward_pre_hook(lambda gate, x, path=path: masks.update({path: gate.mean_mask(x[0])}))
    gated(*inputs)
    assert any((mask[0] != mask[1]).any() for mask in masks.values()), "the masks depend on the input"
    result = bp.compact(gated, inputs)
    assert result.max_rel_error <= BOUNDS[dtype]
    assert result.kept == {path: int(gate.keep().sum()) for path, gate in bp.gates(gated).items()}
    assert result.certificate.after.parameters < result.certificate.before.parameters
    fresh = tuple(torch.randn(2, *each.shape[1:], dtype=dtype) for each in inputs)
    assert difference(gated(*fresh), result.model.eval()(*fresh)) <= BOUNDS[dtype]
    assert all(type(module).__module__.startswith("torch.nn") for module in list(result.model.modules())[1:])


@pytest.mark.slow
@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", sorted(set(GALLERY) - {"tied_weights"}))
def test_input_dependent_gates_in_every_model(name, before_norm, set_gates, scatter_statistics, difference):
    model, inputs = build(name, torch.float64)
    for seed, pruned in enumerate((0.0, 0.3, 0.7, 1.1)):
        gated = set_gates(bp.sparsify(model, "bb", example_inputs=inputs, before_norm=before_norm), pruned, seed)
        gated = scatter_statistics(bp.make_dependent(gated), seed).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bp.BayespruneWarning)
            result = bp.compact(gated, inputs)
        assert "nothing was removed" not in result.certificate.note
        assert result.max_rel_error <= 1e-12
        fresh = tuple(torch.randn_like(each) if each.is_floating_point() else each.flip(-1) for each in inputs)
        assert difference(gated(*fresh), result.model.eval()(*fresh)) <= 1e-12


def test_what_an_input_does_not_use_is_zero_in_the_compacted_network(set_gates, scatter_statistics):
    """The threshold on E[z|x] is applied input by input."""
    model, inputs = build("lenet5", torch.float64)
    gated = scatter_statistics(bp.make_dependent(set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.0))).eval()
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.shift.fill_(-100.0)
    with pytest.warns(bp.BayespruneWarning):
        compacted = bp.compact(gated, inputs).model.eval()
    first, second = compacted(*inputs), compacted(*(each + 1 for each in inputs))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first[0], model.fc2.bias, rtol=1e-12, atol=1e-12)
