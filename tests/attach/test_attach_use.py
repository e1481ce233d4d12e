"""A gated model is used as the plain one is: copied, stored, compiled, distributed, in other precisions, with hooks."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
from gallery import GALLERY
from torch import nn

import bayesprune as bp
from bayesprune.gates import gates

NAMES = ["resnet_basic", "vit_torch", "transformer_encoder", "conv1d"]


@pytest.fixture(params=NAMES)
def case(request):
    torch.manual_seed(0)
    inputs = GALLERY[request.param].inputs()
    return bp.sparsify(GALLERY[request.param].build(), "bb", example_inputs=inputs).eval(), inputs


def test_copies_and_state_dicts(case):
    gated, inputs = case
    twin = copy.deepcopy(gated)
    with torch.no_grad():
        for gate in gates(twin).values():
            gate.raw_a[::2] = -20.0
    assert not torch.equal(twin(*inputs), gated(*inputs))
    assert bp.placement(twin) == bp.placement(gated)
    gated.load_state_dict(twin.state_dict())
    assert torch.equal(twin(*inputs), gated(*inputs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(case, backend):
    gated, inputs = case
    torch._dynamo.reset()
    compiled = torch.compile(gated, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), gated(*inputs))


def test_hooks_of_the_user_run(case):
    gated, inputs = case
    seen = []
    for path, module in gated.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) and not path.endswith("out_proj"):
            module.register_forward_hook(lambda *_, path=path: seen.append(path))
    layers = {path for path, module in gated.named_modules() if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d))}
    gated(*inputs)
    assert set(seen) == {path for path in layers if not path.endswith("out_proj")}


def test_mixed_precision(case):
    gated, inputs = case
    expected = gated(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gated(*inputs)
        loss = gated.train()(*inputs).float().square().mean() + sum(gate.kl() for gate in gates(gated).values()) / 1000
    loss.backward()
    assert (got.float() - expected).norm() <= 0.1 * expected.norm()
    assert all(gate.raw_a.grad is not None and gate.raw_a.grad.isfinite().all() for gate in gates(gated).values())


def test_half_precision_leaves_the_gates_alone(case):
    gated, inputs = case
    expected = gated(*inputs)
    half = copy.deepcopy(gated).to(torch.bfloat16)
    assert all(parameter.dtype == torch.float32 for gate in gates(half).values() for parameter in gate.parameters())
    with torch.no_grad():
        got = half(*(each.to(torch.bfloat16) for each in inputs))
    assert got.dtype == torch.bfloat16
    assert (got.float() - expected).norm() <= 0.1 * expected.norm()


@pytest.fixture
def process_group(tmp_path):
    if not dist.is_available():
        pytest.skip("torch was built without distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["resnet_basic", "transformer_encoder"])
def test_distributed(name, process_group):
    torch.manual_seed(0)
    inputs = GALLERY[name].inputs()
    gated = bp.sparsify(GALLERY[name].build(), "bb", example_inputs=inputs).train()
    wrapped = nn.parallel.DistributedDataParallel(gated)
    assert gates(wrapped) == gates(gated)
    before = copy.deepcopy(gated.state_dict())
    optimiser = torch.optim.SGD(bp.param_groups(wrapped, lr=0.1), lr=0.1)
    bp.negative_elbo(wrapped(*inputs).square().mean(), wrapped, n_data=10).backward()
    optimiser.step()
    moved = {path for path, value in gated.state_dict().items() if not torch.equal(value, before[path])}
    assert {f"{path}.raw_a" for path in gates(gated)} <= moved
    assert bp.compact(gated.eval(), inputs).max_rel_error <= 1e-5 if any(not g.keep().all() for g in gates(gated).values()) else True


@pytest.mark.parametrize("method", ["sbp", "vib", "l0", "gd", "cd", "bb"])
def test_every_method_trains_on_heads_groups_and_channels(method):
    for name in ("vit_torch", "grouped_conv", "groupnorm_net"):
        torch.manual_seed(0)
        inputs = GALLERY[name].inputs()
        gated = bp.sparsify(GALLERY[name].build(), method, example_inputs=inputs).train()
        bp.negative_elbo(gated(*inputs).square().mean(), gated, n_data=100).backward()
        for path, gate in gates(gated).items():
            assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in gate.parameters(recurse=False)), path
