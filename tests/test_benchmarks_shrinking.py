"""The benchmark of shrinking, in a small form."""

import sys

import pytest
from torch import nn

from bayesprune.data import load_dataset
from bayesprune.storage import read_rows
from bayesprune.training import Recipe, StageRecipe
from benchmarks import shrinking
from benchmarks.per_input.networks import Trained

STAGES = {
    "dense": StageRecipe(epochs=1, lr=1e-2),
    "pruned": StageRecipe(epochs=4, lr=1e-2, gate_speed=10.0),
}
SMALL = Trained(
    "small",
    "784-40-10",
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 40), nn.ReLU(), nn.Linear(40, 10)),
    1.0,
    Recipe("small", STAGES, batch_size=20, shrink=True),
)


@pytest.fixture
def measure(tmp_path, monkeypatch, digits_folder):
    data = load_dataset("mnist", digits_folder)
    monkeypatch.setattr(shrinking, "VGG", SMALL)
    monkeypatch.setattr(shrinking, "load_dataset", lambda name: data)
    rows, work = tmp_path / "rows.jsonl", tmp_path / "work"

    def run(*options):
        asked = options if "--pretrain-only" in options else ("--rows", str(rows), *options)
        monkeypatch.setattr(sys, "argv", ["shrinking", *asked, "--work", str(work)])
        shrinking.main()
        return read_rows(rows) if rows.exists() else []

    return run


def test_the_same_stage_with_and_without(measure):
    shrunk, whole = measure()
    assert (shrunk["shrink"], whole["shrink"]) == (True, False)
    assert shrunk["removals"]
    assert "removals" not in whole
    assert shrunk["epochs"] == whole["epochs"] == 4
    assert whole["kept"][0] < 784
    assert whole["kept"] == pytest.approx(shrunk["kept"], abs=60)


def test_what_is_trained_is_not_trained_again(measure):
    first = measure()
    assert measure()[2:] == first


def test_one_by_one_is_the_same(measure):
    assert measure("--pretrain-only") == []
    (whole,) = measure("--only", "whole")
    _, shrunk = measure("--only", "shrinking")
    for alone, together in zip((shrunk, whole), measure()[2:], strict=True):
        assert alone == together
