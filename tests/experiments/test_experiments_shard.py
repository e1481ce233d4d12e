"""Shards: folders that one process at a time writes to, and what a worker answers."""

import shutil
from pathlib import Path

import pytest
import torch
from sweeping import Quiet, timeless

import bayesprune.experiments.ray_worker as ray_worker
from bayesprune.errors import ClusterError, DataError, StorageError
from bayesprune.experiments.grid import expand
from bayesprune.experiments.ray_worker import TOKEN, Order, Reply, work
from bayesprune.experiments.shard import Shard, ShardProgress, ShardWatcher, forget, take_over
from bayesprune.experiments.sweep import run_sweep
from bayesprune.training.store import RunStore, StageRecord


@pytest.fixture(scope="module")
def planned(make_digits, tmp_path_factory):
    folder = make_digits(tmp_path_factory.mktemp("few"), training=200, test=50)
    return expand({"seeds": [0, 1], "epochs": 1, "data_dir": str(folder), "device": "cpu"})


@pytest.fixture
def shard(planned):
    return Shard((0, 1), planned.members)


def order(shard, folder, token="right", **changes):
    folder.mkdir(exist_ok=True)
    (folder / TOKEN).write_text("right")
    settings = {"data_dir": shard.members[0].data_dir, "device": "cpu", "threads": torch.get_num_threads(), **changes}
    return Order(shard, folder, token, **settings)


def test_names(planned, shard):
    assert (shard.name, shard.label, shard.title) == ("0-2", "models 1-2", "lenet-500-300 on mnist, bb")
    assert Shard((1,), planned.members[1:]).label == "model 2"
    assert shard.stages == ("dense", "pruned")


def test_how_far(shard):
    accounts = []
    watcher = ShardWatcher(lambda progress, important: accounts.append((progress.epoch, progress.share(shard.stages), important)))
    watcher.stage_started("pruned", 4, 10, 1)
    watcher.step(0.5)
    watcher.stage_finished({"stage": "pruned"})
    assert accounts == [(2, 0.625, True), (2, 0.6375, False), (4, 1.0, True)]
    assert ShardProgress().share(shard.stages) == 0.0


def test_only_the_last_who_takes_over_can_write(shard, tmp_path):
    """Whoever was thought dead and is not finds its folder gone."""
    first = RunStore(take_over(tmp_path, shard), {"a": 1})
    record = StageRecord("dense", epoch=1)
    first.save({"model/x": torch.ones(2)}, record)
    folder = take_over(tmp_path, shard)
    with pytest.raises(StorageError, match="cannot write"):
        first.save({"model/x": torch.zeros(2)}, record)
    with pytest.raises(StorageError, match="cannot append"):
        first.append({})
    tensors, _ = RunStore(folder, {"a": 1}).load("dense")
    assert torch.equal(tensors["model/x"], torch.ones(2))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]
    forget(tmp_path, Shard((0,), shard.members[:1]))
    assert folder.exists()
    forget(tmp_path, shard)
    assert not folder.exists()


def test_worker(planned, shard, tmp_path):
    told = []
    reply = work(order(shard, tmp_path / "there"), lambda name, progress: told.append((name, progress["stage"])))
    assert timeless(reply.rows) == timeless(run_sweep(planned, tmp_path / "sweep", Quiet()))
    assert [path.name.split(".")[0] for path in (tmp_path / "there").iterdir() if path.is_dir()] == ["0-2"]
    assert {("0-2", None), ("0-2", "dense"), ("0-2", "pruned")} <= set(told)


def test_worker_on_another_machine(shard, tmp_path):
    """There a folder of that name is another one; nor does it matter that nobody listens."""

    def deaf(name, progress):
        raise ConnectionError

    reply = work(order(shard, tmp_path / "there", token="another"), deaf)
    assert len(reply.rows) == 2
    assert [path.name for path in (tmp_path / "there").iterdir()] == [TOKEN]
    gone = order(shard, tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert len(work(gone, deaf).rows) == 2
    assert not (tmp_path / "gone").exists()


def test_worker_with_an_error(shard, tmp_path, monkeypatch):
    reply = work(order(shard, tmp_path, data_dir=str(Path(tmp_path) / "nowhere")), lambda *_: None)
    assert isinstance(reply.error, DataError)
    assert isinstance(work(order(shard, tmp_path, version="0"), lambda *_: None).error, ClusterError)

    def too_large(*_arguments):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(ray_worker, "run_shard", too_large)
    assert work(order(shard, tmp_path), lambda *_: None) == Reply(None, None)
