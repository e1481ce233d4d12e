"""The benchmark of uncertainty, in a small form."""

import sys
from dataclasses import replace

import pytest
import torch

from bayesprune.data import load_dataset
from bayesprune.storage import read_rows
from benchmarks.uncertainty import __main__ as command
from benchmarks.uncertainty import measuring, networks
from benchmarks.uncertainty.measuring import ANGLES, rotated


@pytest.fixture
def run(tmp_path, monkeypatch, digits_folder):
    data = load_dataset("mnist", digits_folder)
    monkeypatch.setattr(networks, "load_dataset", lambda name: data)
    monkeypatch.setattr(networks, "HELD_OUT", 20)
    monkeypatch.setattr(networks, "FAST", replace(networks.FAST, batch_size=20).with_epochs(1))
    monkeypatch.setattr(measuring, "DRAWS", 3)
    monkeypatch.setattr(measuring, "TIMED", 1)
    rows = tmp_path / "rows.jsonl"

    def with_options(*options):
        paths = ["--rows", str(rows), "--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")]
        monkeypatch.setattr(sys, "argv", ["uncertainty", *options, *paths])
        command.main()
        return read_rows(rows)

    return with_options


def test_rows_and_page(run, tmp_path):
    rows = run("--seeds", "0")
    of = {method: [row for row in rows if row["method"] == method] for method in networks.METHODS}
    assert len(of["dense"]) == 2 * len(ANGLES)
    assert all(len(of[method]) == 4 * len(ANGLES) for method in networks.METHODS if method != "dense")
    assert all(row["draws"] == 3 for row in rows if row["way"].startswith("draws"))
    assert all(row["narrow_parameters"] <= row["whole_parameters"] for row in rows if row["method"] != "dense")
    assert run("--seeds", "0") == rows
    run("--report")
    page = (tmp_path / "docs" / "uncertainty.md").read_text(encoding="utf-8")
    assert "concrete dropout" in page
    assert (tmp_path / "docs" / "figures" / "uncertainty.png").stat().st_size > 10_000


def test_rotation_by_a_right_angle():
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(rotated(images, 90), torch.rot90(images, 1, (2, 3)), atol=1e-5, rtol=1e-4)
    assert rotated(images, 0) is images
