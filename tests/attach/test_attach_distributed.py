"""Two processes train one gated model: they see halves of the batch, and end with the same weights and gates."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gallery import GALLERY
from torch import nn

import bayesprune as bp

WORLD = 2


def train(rank, name, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    inputs = GALLERY[name].inputs()
    wrapped = nn.parallel.DistributedDataParallel(bp.sparsify(GALLERY[name].build(), "bb", example_inputs=inputs).train())
    optimiser = torch.optim.Adam(bp.param_groups(wrapped, lr=0.01, gate_lr=0.5))
    torch.manual_seed(1 + rank)
    for _ in range(8):
        batch = tuple(torch.randn_like(each) for each in inputs)
        optimiser.zero_grad()
        bp.negative_elbo(wrapped(*batch).square().mean(), wrapped, n_data=10, kl_scale=10.0).backward()
        optimiser.step()
    torch.save(wrapped.module.state_dict(), f"{folder}/{rank}.pt")
    if rank == 0:
        small = bp.compact(wrapped.module.eval(), inputs)
        torch.save({"error": small.max_rel_error, "kept": small.kept}, f"{folder}/small.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("name", ["resnet_basic", "transformer_encoder"])
def test_two_processes(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    torch.multiprocessing.spawn(train, args=(name, str(tmp_path)), nprocs=WORLD)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD))
    learned = [key for key in first if "running" not in key and "num_batches" not in key]  # Batch statistics are each process's own.
    assert any(key.endswith("raw_a") for key in learned)
    assert all(torch.equal(first[key], second[key]) for key in learned)
    small = torch.load(tmp_path / "small.pt", weights_only=True)
    assert small["error"] <= 1e-5
