"""Sweeps: every model has its row once, whatever happens in between."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from sweeping import Quiet, timeless

import bayesprune.experiments.engine as engine
import bayesprune.experiments.shard as shards
import bayesprune.experiments.sweep as sweeps
from bayesprune.errors import InputError, RunFolderError, StorageError
from bayesprune.experiments import RunConfig
from bayesprune.experiments.grid import expand
from bayesprune.experiments.sweep import Sweep, read_sweep, run_sweep
from bayesprune.storage import read_rows, read_toml
from bayesprune.training.recipes import find_recipe

SETTINGS = {"methods": ["bb", "l0"], "factors": [0.5, 2.0], "seeds": [0, 1], "epochs": 1, "side_by_side": 3}


@pytest.fixture(scope="module")
def few_digits(make_digits, tmp_path_factory):
    return str(make_digits(tmp_path_factory.mktemp("few"), training=200, test=50))


@pytest.fixture(scope="module")
def planned(few_digits):
    return expand({**SETTINGS, "data_dir": few_digits})


@pytest.fixture(scope="module")
def through(planned, tmp_path_factory):
    """The rows of a sweep that was never stopped."""
    return run_sweep(planned, tmp_path_factory.mktemp("through") / "sweep", Quiet())


def test_grid(planned):
    assert len(planned.members) == 8
    found = sorted({(member.method, member.tradeoff) for member in planned.members})
    usual = find_recipe("fast").tradeoffs["bb"]
    assert found == [("bb", 0.5 * usual), ("bb", 2.0 * usual), ("l0", pytest.approx(0.05 / 60_000)), ("l0", pytest.approx(0.2 / 60_000))]
    assert planned.shards() == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert replace(planned, side_by_side=4).shards() == [(0, 1, 2, 3), (4, 5, 6, 7)]
    own = expand({"methods": ["bb", "cd"], "tradeoffs": {"bb": [1, 2, 3]}, "seeds": [5]})
    assert [(member.method, member.tradeoff, member.seed) for member in own.members] == [
        ("bb", 1, 5), ("bb", 2, 5), ("bb", 3, 5), ("cd", None, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"netwroks": ["a"]}, "no setting 'netwroks'.*Did you mean 'networks'"),
        ({"methods": "bb"}, "methods of a sweep is a list"),
        ({"methods": ["xx"]}, "unknown method 'xx'"),
        ({"seeds": []}, "seeds of a sweep is a list"),
        ({"seeds": [True]}, "seeds of a sweep is a list"),
        ({"seeds": [1, 1]}, "twice in the sweep"),
        ({"factors": [-1]}, "finite number above zero"),
        ({"epochs": "3"}, "epochs of a sweep must be of type int"),
        ({"tradeoffs": {"vib": [1]}}, "none of the methods"),
        ({"side_by_side": 0}, "at least one model"),
        ({"networks": ["lenet5-caffe"], "dataset": "cifar10"}, "is made for"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        expand(settings)


def test_settings_of_a_file(tmp_path):
    (tmp_path / "sweep.toml").write_text('methods = ["vib"]\nseeds = [4]\n[tradeoffs]\nvib = [1e-5]\n')
    assert expand(read_toml(tmp_path / "sweep.toml")).members[0].tradeoff == 1e-5


def test_folder_of_something_else(tmp_path):
    with pytest.raises(RunFolderError, match="not a sweep's folder"):
        read_sweep(tmp_path)


MEMBER = {**vars(RunConfig()), "method": "bb", "tradeoff": 1.0, "epochs": 1, "shrink": True}


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("rows.jsonl", "[1]\n", {}),
        ("rows.jsonl", "{}\n", {}),
        ("rows.jsonl", '{"member": 0}\n', {}),
        ("rows.jsonl", '{"member": 7, "status": "finished"}\n', {}),
        ("shards.json", "[[5]]", {}),
        ("shards.json", "[[0], [0]]", {}),
        ("shards.json", "5", {}),
        ("shards.json", "[]", {}),
        ("config.json", None, {"dataset": 5}),
        ("config.json", None, {"device": 5}),
        ("config.json", None, {"before_norm": "x"}),
        ("config.json", None, {"unheard": 1}),
    ],
)
def test_damaged_files_are_named(tmp_path, file, text, changed):
    (tmp_path / "config.json").write_text(json.dumps({"members": [MEMBER | changed], "side_by_side": None}))
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(StorageError, match=file):
        run_sweep(read_sweep(tmp_path), tmp_path, Quiet())


def test_rows(planned, through):
    assert [row["member"] for row in through] == list(range(8))
    for member, row in zip(planned.members, through, strict=True):
        assert row["status"] == "finished"
        assert (row["method"], row["seed"], row["tradeoff"]) == (member.method, member.seed, member.tradeoff)
        assert 0 <= row["error"] <= 100
        assert len(row["kept"]) == 3
        assert [stage["stage"] for stage in row["stages"]] == ["dense", "pruned"]


@pytest.mark.parametrize("stop", range(1, 12, 2))
def test_stopped_anywhere(planned, through, tmp_path, stop):
    class Stopping(Quiet):
        calls = 0

        def shard_progressed(self, _shard, progress):
            Stopping.calls += progress.done % progress.steps == 0
            if Stopping.calls == stop:
                raise KeyboardInterrupt

    folder = tmp_path / "sweep"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(planned, folder, Stopping())
    assert timeless(run_sweep(read_sweep(folder), folder, Quiet())) == timeless(through)
    assert timeless(read_rows(folder / "rows.jsonl")) == timeless(through)
    assert not (folder / "shards").exists()


def test_no_memory_halves_the_shard(planned, tmp_path, monkeypatch):
    run_shard = engine.run_shard

    def too_small(shard, *rest):
        if len(shard.members) > 1:
            raise torch.cuda.OutOfMemoryError
        return run_shard(shard, *rest)

    monkeypatch.setattr(engine, "run_shard", too_small)
    two = Sweep(planned.members[:3])
    rows = run_sweep(two, tmp_path / "sweep", Quiet())
    assert [row["member"] for row in rows] == [0, 1, 2]
    assert json.loads((tmp_path / "sweep" / "shards.json").read_text()) == [[0], [1], [2]]


def test_another_sweep_in_the_folder(planned, tmp_path):
    folder = tmp_path / "sweep"
    run_sweep(Sweep(planned.members[:1]), folder, Quiet())
    with pytest.raises(RunFolderError, match="another configuration"):
        run_sweep(Sweep(planned.members[:2]), folder, Quiet())


def test_a_finished_sweep_is_only_read(planned, through, tmp_path, few_digits):
    folder, watcher = tmp_path / "sweep", Quiet()
    one = Sweep((replace(RunConfig(), method="cd", epochs=1, data_dir=few_digits),))
    rows = run_sweep(one, folder, watcher)
    assert run_sweep(one, folder, watcher) == rows
    assert watcher.finished == [(0,)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_again_and_again(tmp_path, few_digits):
    """The process is killed at random moments, twenty unless it is done before, also while it writes, and taken up each time."""
    settings = {"methods": ["bb", "dbb"], "factors": [0.5, 2.0], "seeds": list(range(10)), "epochs": 20, "side_by_side": 2}
    planned = expand({**settings, "data_dir": few_digits})
    folder, kills, waits = tmp_path / "sweep", 0, random.Random(0)
    command = [sys.executable, "-m", "bayesprune", "sweep"]
    options = ["--methods", "bb,dbb", "--factors", "0.5,2", "--seeds", "0,1,2,3,4,5,6,7,8,9", "--epochs", "20", "--side-by-side", "2"]
    first = [*options, "--data-dir", few_digits, "--device", "cpu", "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    while True:
        begun = (folder / "config.json").exists()
        process = subprocess.Popen([*command, *(["--resume", str(folder)] if begun else first)], env=environment, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(waits.uniform(2.5, 6.5) if kills < 20 else 900.0) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert kills >= 5  # A fast machine is done sooner.
    through = run_sweep(planned, tmp_path / "through", Quiet())
    assert timeless(read_rows(folder / "rows.jsonl")) == timeless(through)


def test_full_disk_when_rows_are_written(planned, through, tmp_path, monkeypatch):
    folder, write, calls = tmp_path / "sweep", sweeps.write_rows, []

    def full(path, rows):
        calls.append(path)
        if len(calls) == 2:
            raise StorageError("no space left")
        write(path, rows)

    monkeypatch.setattr(sweeps, "write_rows", full)
    with pytest.raises(StorageError, match="no space"):
        run_sweep(planned, folder, Quiet())
    assert len(read_rows(folder / "rows.jsonl")) == 2
    assert timeless(run_sweep(planned, folder, Quiet())) == timeless(through)


@pytest.mark.parametrize("side_by_side", [1, 3])
def test_a_member_that_diverges_has_a_row_without_error(few_digits, tmp_path, monkeypatch, side_by_side):
    build = shards.build_seeded

    def spoilt(member, classes):
        model = build(member, classes)
        if member.seed == 1:
            with torch.no_grad():
                model.fc2.weight[0, 0] = float("nan")
        return model

    monkeypatch.setattr(shards, "build_seeded", spoilt)
    three = expand({"seeds": [0, 1, 2], "epochs": 1, "data_dir": few_digits, "side_by_side": side_by_side})
    rows = run_sweep(three, tmp_path / "sweep", Quiet())
    assert [row["status"] for row in rows] == ["finished", "diverged", "finished"]
    assert (rows[1]["error"], rows[1]["kept"]) == (None, None)
    assert "fc2.weight" in rows[1]["reason"]
    assert [len(row["stages"]) for row in rows] == [2, 1, 2]


def test_a_sweep_of_before_shrinking_is_gone_on_with(few_digits, tmp_path):
    folder = tmp_path / "sweep"
    planned = expand({"seeds": [0, 1], "epochs": 1, "data_dir": few_digits, "side_by_side": 1, "shrink": False})
    rows = run_sweep(planned, folder, Quiet())
    written = json.loads((folder / "config.json").read_text())
    for member in written["members"]:
        assert member.pop("shrink") is False
        assert member.pop("precision") == "float32"
    (folder / "config.json").write_text(json.dumps(written))
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (folder / "rows.jsonl").write_text(lines[0])
    assert read_sweep(folder) == planned
    assert timeless(run_sweep(read_sweep(folder), folder, Quiet())) == timeless(rows)
