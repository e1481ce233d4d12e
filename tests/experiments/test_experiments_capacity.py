"""How many models fit: from the memory of a few."""

import pytest
import torch

import bayesprune.experiments.sweep as sweeps
from bayesprune.experiments import RunConfig
from bayesprune.experiments.capacity import fitting
from bayesprune.experiments.sweep import Sweep

MIB = 2**20


@pytest.mark.parametrize(
    ("each", "common", "free", "most", "expected"),
    [
        (10, 50, 10_000, 128, 128),  # More would fit than pay.
        (10, 50, 1_000, 128, 65),
        (10, 0, 20, 128, 1),
        (10, 50, 0, 128, 1),
        (1000, 0, 500, 128, 1),
        (10, 50, 1_000, 1, 1),
    ],
)
def test_fitting(each, common, free, most, expected):
    assert fitting(lambda count: (common + each * count) * MIB, free * MIB, most) == expected


def test_one_that_does_not_fit_among_few_is_trained_alone():
    def full(count):
        raise torch.cuda.OutOfMemoryError

    assert fitting(full, 1000 * MIB, 128) == 1


def test_memory_that_does_not_grow():
    assert fitting(lambda count: 100 * MIB, 1000 * MIB, 64) == 64


def test_a_sweep_asks_its_gpu(monkeypatch):
    """On a machine without one that is what a cluster has; it halves shards that are too large."""
    members = tuple(RunConfig(method="bb", device="cuda", seed=seed) for seed in range(10))
    assert Sweep(members).shards() == [tuple(range(10))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = []
    monkeypatch.setattr(sweeps, "models_that_fit", lambda member, most: asked.append((member.network, most)) or 4)
    assert [len(shard) for shard in Sweep(members).shards()] == [3, 3, 4]
    assert asked == [("lenet-500-300", 128)]
    assert len(Sweep(members, side_by_side=10).shards()) == 1
