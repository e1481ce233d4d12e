"""What the contract tests share: a gate of every registered method, with random parameters, beside the layer that it controls."""

import pytest
import torch
from torch import nn

from bayesprune.gates import METHODS
from bayesprune.noise import NoiseKeys


class Gated(nn.Module):
    """A gate and the linear layer whose inputs it controls."""

    def __init__(self, gate, outputs=4):
        super().__init__()
        self.gate = gate
        self.layer = nn.Linear(gate.units.channels or gate.num_units, outputs)
        gate.control(self.layer, "inputs")

    def forward(self, x):
        return self.layer(self.gate(x))


def scatter(gate, spread, seed=0):
    """Move every parameter and persistent buffer of a gate by normal noise, so that its units differ and some are pruned."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in gate.state_dict().items():
        tensor += spread * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        if name == "running_var":
            tensor.abs_().add_(0.1)
    return gate


def with_noise(model, seed=0, step=0):
    """Give a model fixed noise."""
    keys = NoiseKeys(model, seed, "cpu")
    keys.set(keys.for_steps(step, 1)[0])
    return keys


@pytest.fixture(params=sorted(METHODS))
def method(request):
    return request.param


@pytest.fixture
def make_gated(method):
    """Builds a `Gated` of the method with fixed noise; ``spread`` is how far its parameters are scattered."""

    def make(units=6, *, spread=1.0, seed=0, dtype=torch.float32, keyed=True, **arguments):
        torch.manual_seed(seed)
        gated = Gated(METHODS[method](units, **arguments)).to(dtype)
        scatter(gated.gate, spread, seed)
        if keyed:
            with_noise(gated, seed)
        return gated

    return make


@pytest.fixture
def make_gate(make_gated):
    return lambda *args, **kwargs: make_gated(*args, **kwargs).gate


@pytest.fixture(name="scatter", scope="session")
def scatter_fixture():
    return scatter


@pytest.fixture(name="with_noise", scope="session")
def with_noise_fixture():
    return with_noise
