"""Run folders and networks that are damaged or were never ours: one line and exit code 2, whatever they hold."""

import json
from dataclasses import asdict

import pytest
import torch
from refusals import refused
from torch import nn

from bayesprune import save
from bayesprune.experiments import RunConfig


class Mapped(nn.Module):
    def forward(self, x):
        return {"a": 2 * x}


class Single(nn.Module):
    def forward(self, x):
        return x.sum()


@pytest.fixture
def folder(tmp_path):
    """What looks like the folder of a finished run."""
    path = tmp_path / "run"
    path.mkdir()
    write_config(path)
    save(nn.Linear(4, 3).eval(), path / "compacted.safetensors", example_inputs=torch.randn(3, 4))
    (path / "summary.json").write_text(json.dumps({"status": "finished", "stages": []}))
    (path / "metrics.jsonl").write_text("")
    return path


def write_config(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**asdict(RunConfig()), **changes}))


@pytest.mark.parametrize("action", [("run", "--resume"), ("bench",), ("export",)], ids="-".join)
def test_deep_nests_in_the_configuration(command, folder, action):
    (folder / "config.json").write_text("[" * 100_000)
    refused(command(*action, folder), "config.json is damaged")


def test_deep_nests_in_the_summary(command, folder):
    (folder / "summary.json").write_text("[" * 100_000)
    refused(command("run", "--resume", folder), "summary.json is damaged")


@pytest.mark.parametrize("action", [("run", "--resume"), ("bench",)], ids="-".join)
@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["huge", "negative"])
def test_numbers_beyond_all_numbers(command, folder, action, value):
    write_config(folder, tradeoff=value)
    refused(command(*action, folder), "config.json is damaged", "tradeoff")


def test_data_folder_that_is_no_path(command, folder):
    write_config(folder, data_dir="a\0b")
    (folder / "summary.json").unlink()
    refused(command("run", "--resume", folder), "is no path of a file")


@pytest.mark.parametrize("action", ["bench", "export"])
@pytest.mark.parametrize("model", [Mapped(), Single(), nn.Linear(4, 0)], ids=["mapping", "number", "nothing"])
def test_network_that_no_run_has_made(command, folder, action, model):
    save(model.eval(), folder / "compacted.safetensors", example_inputs=torch.randn(3, 4))
    refused(command(action, folder), "is no network of a run")


SUMMARIES = [
    {},
    {"stages": []},
    {"stages": 5},
    {"stages": [5]},
    {"stages": [{"stage": "x"}]},
    {"stages": [{"stage": "x", "error": "x", "kept": 5, "speedup": None, "memory": 10**400}]},
]


@pytest.mark.parametrize("summary", SUMMARIES, ids=lambda summary: str(summary)[:30])
@pytest.mark.parametrize("rows", ["", "5\n", "{}\n", '{"stage": "dense", "seconds": 1, "error": 1, "kept": []}\n'])
def test_finished_run_without_its_results(command, folder, summary, rows):
    (folder / "summary.json").write_text(json.dumps({"status": "finished", **summary}))
    (folder / "metrics.jsonl").write_text(rows)
    refused(command("run", "--resume", folder), "summary.json or metrics.jsonl", "is damaged")


@pytest.mark.parametrize("name", ["network.safetensors", "link", "./network.safetensors"])
def test_export_does_not_replace_the_network(command, tmp_path, name):
    path = tmp_path / "network.safetensors"
    save(nn.Linear(4, 3).eval(), path, example_inputs=torch.randn(3, 4))
    (tmp_path / "link").symlink_to(path)
    before = path.read_bytes()
    refused(command("export", path, "--out", tmp_path / name), "is the network itself")
    assert path.read_bytes() == before


def test_export_does_not_replace_the_network_of_a_run(command, folder):
    refused(command("export", folder, "--out", folder / "compacted.safetensors"), "is the network itself")


@pytest.mark.parametrize(
    "options", [("--threads", "1000000"), ("--threads", "100000000000"), ("--batch-sizes", "100000000000"), ("--batch-sizes", "9" * 30)]
)
def test_more_than_there_can_be(command, folder, options):
    refused(command("bench", folder / "compacted.safetensors", *options), options[0].strip("-").replace("-", "_"))


def test_errors_do_not_move_the_cursor(command, tmp_path):
    refused(command("bench", tmp_path / "a\nb\x1b[2J"), "a\\nb\\x1b[2J")
