"""A gated model that went through torch.compile, or is distributed, is the gated model to all our functions."""

import pytest
import torch
from torch import nn

import bayesprune as bp


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 3))


@pytest.fixture
def x():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def gated(x):
    gated = bp.sparsify(perceptron(), "bb", example_inputs=x).eval()
    bp.gates(gated)["0.input_gate"].prune(torch.arange(2))
    return gated


@pytest.fixture
def compiled(gated):
    return torch.compile(gated, backend="eager", fullgraph=True)


def test_it_runs_on_after_it_was_looked_at(compiled, gated, x):
    before = compiled(x)
    assert bp.cost(compiled, x) == bp.cost(gated, x)
    assert bp.compact(compiled, x).kept == bp.compact(gated, x).kept == {"0.input_gate": 4}
    assert torch.equal(compiled(x), before)


def test_gates_have_their_names(compiled, gated):
    assert list(bp.gates(compiled)) == list(bp.gates(gated))
    scaled = bp.negative_elbo(torch.tensor(1.0), compiled, n_data=10, kl_scale={"0.input_gate": 2.0})
    assert torch.equal(scaled, bp.negative_elbo(torch.tensor(1.0), gated, n_data=10, kl_scale=2.0))


def test_layers_left_alone_are_named(compiled, gated):
    assert bp.placement(gated).left_alone
    assert bp.placement(compiled) == bp.placement(gated)
    assert bp.summary(compiled) == bp.summary(gated)


def test_stage_two(compiled, x):
    staged = bp.make_dependent(compiled)
    assert type(staged) is nn.Sequential
    assert {gate.method for gate in bp.gates(staged).values()} == {"dbb"}


def test_loading_into_a_compiled_model(gated, x, tmp_path):
    bp.save(gated, tmp_path / "gated.safetensors")
    into = torch.compile(perceptron(), backend="eager")
    assert torch.equal(bp.load(tmp_path / "gated.safetensors", into=into).eval()(x), gated(x))


@pytest.fixture
def distributed(gated, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield nn.parallel.DistributedDataParallel(gated)
    torch.distributed.destroy_process_group()


def test_distributed(distributed, gated, x, tmp_path):
    assert bp.placement(distributed) == bp.placement(gated)
    assert bp.compact(distributed, x).kept == {"0.input_gate": 4}
    assert type(bp.make_dependent(distributed)) is nn.Sequential
    bp.save(distributed, tmp_path / "gated.safetensors")
    assert torch.equal(bp.load(tmp_path / "gated.safetensors", into=perceptron()).eval()(x), gated(x))


def test_compiled_and_distributed(distributed, gated):
    assert list(bp.gates(torch.compile(distributed, backend="eager"))) == list(bp.gates(gated))
