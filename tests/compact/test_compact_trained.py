"""Networks of every family, trained for a moment until gates prune, and then made small."""

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY

import bayesprune as bp
from bayesprune.models import LeNet5Caffe

FAMILIES = [
    "mlp", "lenet5", "vgg", "resnet_basic", "resnet_bottleneck", "mobilenet_v2", "densenet", "shufflenet_v2", "squeeze_excitation", "unet",
    "vit_own", "vit_torch", "transformer_encoder", "conv1d", "groupnorm_net", "layernorm_net",
]  # fmt: skip
QUICK = {"mlp", "conv1d", "vit_torch", "resnet_basic"}


def train_until_pruned(gated, inputs, steps=60):
    """Random data and a large divergence: gates go down at different speeds, and training stops half way."""
    torch.manual_seed(1)
    target = torch.randn_like(gated.eval()(*inputs).detach())
    optimiser = torch.optim.Adam(bp.param_groups(gated.train(), lr=5e-3, gate_lr=0.3))
    for _ in range(steps):
        loss = bp.negative_elbo(F.mse_loss(gated(*inputs), target), gated, n_data=10, kl_scale=1.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        kept = sum(int(gate.keep().sum()) for gate in bp.gates(gated).values())
        if kept <= 0.6 * sum(gate.num_units for gate in bp.gates(gated).values()):
            break
    return gated.eval()


def train_and_compact(name, before_norm, difference, model=None, inputs=None):
    torch.manual_seed(0)
    model = GALLERY[name].build() if model is None else model
    inputs = GALLERY[name].inputs() if inputs is None else inputs
    gated = bp.sparsify(model, "bb", example_inputs=inputs, before_norm=before_norm)
    with torch.no_grad():  # From different beginnings, or all units would fall at the same step.
        for gate in bp.gates(gated).values():
            gate.raw_a += 2.0 * torch.randn(gate.num_units)
    train_until_pruned(gated, inputs)
    kept = {path: int(gate.keep().sum()) for path, gate in bp.gates(gated).items()}
    assert 0 < sum(kept.values()) < sum(gate.num_units for gate in bp.gates(gated).values())
    result = bp.compact(gated, inputs)
    assert result.kept == kept
    assert result.certificate.note == ""
    assert result.max_rel_error <= 1e-5
    assert result.certificate.after.macs < result.certificate.before.macs
    fresh = tuple(torch.randn(5, *each.shape[1:]) for each in inputs)
    assert difference(gated(*fresh), result.model.eval()(*fresh)) <= 1e-5


@pytest.mark.parametrize("name", sorted(QUICK))
def test_trained_and_compacted(name, difference):
    train_and_compact(name, False, difference)


@pytest.mark.slow
@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trained_and_compacted(name, before_norm, difference):
    train_and_compact(name, before_norm, difference)


@pytest.mark.slow
def test_the_whole_lenet5_with_its_four_gates(difference):
    train_and_compact("", False, difference, LeNet5Caffe(), (torch.rand(16, 1, 28, 28),))
