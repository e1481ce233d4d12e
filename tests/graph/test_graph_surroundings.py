"""What we make does not depend on the modes of torch that the caller is in."""

import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.graph.surroundings import undisturbed

MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def gated():
    gated = bp.sparsify(perceptron(), "bb").eval()
    for gate in bp.gates(gated).values():
        gate.prune(torch.arange(2))
    return gated


@pytest.fixture
def x():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def loaded(gated, x, path):
    bp.save(bp.compact(gated, x).model, path)
    return bp.load(path)


def loaded_with_gates(gated, x, path):
    bp.save(gated, path)
    return bp.load(path, into=perceptron())


MAKERS = {
    "sparsify": lambda gated, x, path: bp.sparsify(perceptron(), "bb", example_inputs=x),
    "make_dependent": lambda gated, x, path: bp.make_dependent(gated),
    "compact": lambda gated, x, path: bp.compact(gated, x).model,
    "load": loaded,
    "load_into": loaded_with_gates,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_made_can_be_trained(make, mode, gated, x, tmp_path):
    with mode():
        made = make(gated, x, tmp_path / "made.safetensors")
    made.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_compaction_is_as_exact_as_ever(mode, gated, x):
    with mode():
        result = bp.compact(gated, x)
    assert result.max_rel_error < 1e-5
    assert result.certificate.note == ""


def test_modes_are_back_afterwards():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        with undisturbed():
            assert not torch.is_autocast_enabled("cpu")
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled()
    with undisturbed():
        assert torch.is_grad_enabled()


def test_warnings_are_about_the_callers_line(x):
    with pytest.warns(bp.BayespruneWarning, match="no unit is under") as caught:
        bp.compact(bp.sparsify(perceptron(), "bb"), x)
    assert caught[0].filename == __file__
