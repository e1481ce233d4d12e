"""Runs in processes of their own that are killed without warning (``kill -9``) at random moments and taken up again."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from bayesprune.storage import read_tensors

RUN = [sys.executable, "-m", "bayesprune", "run"]
STAGES = ("dense", "pruned", "dependent")


def start(*arguments):
    """A run in a process of its own, once it has read its options; what it says afterwards is not read."""
    process = subprocess.Popen(
        [*RUN, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = process.stderr.readline()
    assert first.startswith("run folder:"), first + process.stderr.read()
    return process


def wait(process, seconds=None):
    """Whether the process ended by itself in that time, without an error."""
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    assert process.returncode == 0, said
    return True


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def numbers_of(folder):
    """The summary and the metrics without the seconds, and the tensors of every checkpoint."""
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in (*summary["stages"], *rows):
        del row["seconds"]
        row.pop("latency", None)
    return summary, rows, {stage: read_tensors(folder / "checkpoints" / f"{stage}.safetensors")[0] for stage in STAGES}


def run_with_kills(folder, options, kills, typical_seconds, seed):
    """Kill a run so many times, each time after a random part of it, then let it finish. Returns how often it was killed."""
    moments = random.Random(seed)
    for killed in range(kills):
        known = (folder / "config.json").exists()
        process = start("--resume", folder) if known else start("--out", folder, *options)
        if wait(process, moments.uniform(0.0, 2.0 * typical_seconds / (kills + 1))):
            return killed
        kill(process)
    process = start("--resume", folder) if (folder / "config.json").exists() else start("--out", folder, *options)
    assert wait(process)
    return kills


def require_same_as_uninterrupted(tmp_path, digits_folder, epochs, kills):
    options = ("--data-dir", digits_folder, "--epochs", epochs, "--tradeoff", 0.1, "--device", "cpu")
    process = start("--out", tmp_path / "through", *options)
    begun = time.perf_counter()
    assert wait(process)
    killed = run_with_kills(tmp_path / "killed", options, kills, time.perf_counter() - begun, seed=kills)
    assert killed >= kills // 3, "the run was too short to be killed that often"

    summary, rows, tensors = numbers_of(tmp_path / "killed")
    expected_summary, expected_rows, expected_tensors = numbers_of(tmp_path / "through")
    assert summary == expected_summary
    assert rows == expected_rows
    assert [(row["stage"], row["epoch"]) for row in rows] == [(stage, epoch + 1) for stage in STAGES for epoch in range(epochs)]
    for stage in STAGES:
        assert tensors[stage].keys() == expected_tensors[stage].keys()
        for name, tensor in tensors[stage].items():
            assert torch.equal(tensor, expected_tensors[stage][name]), (stage, name)
    names = {path.name for path in (tmp_path / "through").rglob("*")}
    assert {path.name for path in (tmp_path / "killed").rglob("*")} == names


def test_killed_run_ends_the_same(tmp_path, digits_folder):
    require_same_as_uninterrupted(tmp_path, digits_folder, epochs=4, kills=4)


@pytest.mark.slow
def test_run_that_is_killed_many_times_ends_the_same(tmp_path, digits_folder):
    require_same_as_uninterrupted(tmp_path, digits_folder, epochs=20, kills=25)
