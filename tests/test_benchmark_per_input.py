"""Latency and work of single inputs."""

import pytest
import torch
from per_input_networks import set_masks
from torch import nn

import bayesprune as bp
from bayesprune.adaptive.work import count_work
from bayesprune.benchmark import benchmark_per_input
from bayesprune.errors import InputError


class Watched(nn.Module):
    """Notes the modes in which it is called, and gives the first inputs back as scores."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        self.calls.append((self.training, len(x), torch.get_num_threads()))
        return x[:, :3] + 0.0 * self.layer(x)


@pytest.fixture
def x():
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0))


def test_inputs_come_alone_in_evaluation_mode(x):
    model = Watched().train()
    measured = benchmark_per_input({"one": model, "other": Watched()}, x, x[:, :3].argmax(dim=1), threads=1)
    assert {(training, size, threads) for training, size, threads in model.calls[:-1]} == {(False, 1, 1)}
    assert model.training
    rows = measured.rows()
    assert [(row["model"], row["inputs"], row["error"], row["macs_mean"]) for row in rows] == [
        ("one", 7, 0.0, 12.0),
        ("other", 7, 0.0, 12.0),
    ]
    assert all(0 < row["p5_ms"] <= row["median_ms"] <= row["p95_ms"] for row in rows)
    assert rows[0]["speedup"] == 1.0
    assert "7 inputs one by one" in str(measured)
    assert "error" in str(measured).splitlines()[0]


def test_errors_are_counted(x):
    labels = x[:, :3].argmax(dim=1)
    labels[:2] = (labels[:2] + 1) % 3
    (row,) = benchmark_per_input({"one": Watched()}, x, labels).rows()
    assert row["error"] == pytest.approx(200 / 7)


def test_one_input_without_labels(x):
    measured = benchmark_per_input({"one": Watched()}, x[:1])
    assert measured.models[0].error is None
    assert str(measured).splitlines()[-1].startswith("1 input one by one")


def test_work_of_an_adaptive_network_is_that_of_each_input():
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    gated = set_masks(bp.sparsify(nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 4)), "bb", example_inputs=x))
    adaptive = bp.AdaptiveModel(gated, x, cache=None)
    measured = benchmark_per_input({"compacted": adaptive.compacted, "adaptive": adaptive}, x)
    assert measured.models[1].macs == tuple(count_work(adaptive, x).executed.tolist())
    with pytest.raises(InputError, match="for inputs of the example's size"):
        count_work(adaptive, torch.randn(2, 31))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": {}}, "a dictionary of some by name"),
        ({"models": {"a": 3}}, "is not an nn.Module but int"),
        ({"inputs": torch.zeros(0, 4)}, "at least one"),
        ({"inputs": (torch.zeros(2, 4),)}, "inputs is a tensor"),
        ({"inputs": torch.zeros(2, 5)}, "does not run on example_inputs"),
        ({"labels": torch.zeros(3)}, "a class for each of the 7 inputs"),
        ({"labels": torch.zeros(7, 1)}, "a class for each of the 7 inputs"),
        ({"models": {"a": nn.Flatten(0)}, "labels": torch.zeros(7)}, "'a' does not"),
        ({"threads": 0}, "threads must be a whole number of at least 1"),
        ({"threads": "a"}, "threads must be a whole number of at least 1"),
        ({"threads": 10**6}, "threads must be a whole number of at most"),
    ],
)
def test_what_cannot_be_measured(x, arguments, message):
    with pytest.raises(InputError, match=message):
        benchmark_per_input(**{"models": {"one": Watched()}, "inputs": x, **arguments})
