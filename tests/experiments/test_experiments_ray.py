"""Sweeps on a Ray cluster: the rows of a local sweep, whoever dies meanwhile."""

import ast
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from refusals import refused
from sweeping import Quiet, timeless

import bayesprune.experiments.ray_connection as ray_connection
import bayesprune.experiments.ray_engine as ray_engine
from bayesprune.errors import ClusterError, DataError, InputError
from bayesprune.experiments.grid import expand
from bayesprune.experiments.ray_engine import RayEngine
from bayesprune.experiments.ray_worker import Reply, work
from bayesprune.experiments.sweep import Sweep, read_sweep, run_sweep
from bayesprune.storage import read_rows

ray = pytest.importorskip("ray")
SETTINGS = {"methods": ["bb", "l0"], "seeds": [0, 1], "side_by_side": 2}
SMALL = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A shard's rows are the same on any engine if it has the same number of threads."""
    threads, given = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    yield
    torch.set_num_threads(threads)
    del os.environ["OMP_NUM_THREADS"], os.environ["RAY_USAGE_STATS_ENABLED"]
    if given is not None:
        os.environ["OMP_NUM_THREADS"] = given


@pytest.fixture(scope="module")
def no_cluster_left():
    yield
    ray.shutdown()


@pytest.fixture
def cluster(one_thread, no_cluster_left):
    """Of this process alone, and of all tests here that want one: starting it takes seconds."""
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, **SMALL, **QUIET)


@pytest.fixture(scope="module")
def few_digits(make_digits, tmp_path_factory):
    return str(make_digits(tmp_path_factory.mktemp("few"), training=200, test=50))


@pytest.fixture(scope="module")
def planned(few_digits):
    return expand({**SETTINGS, "epochs": 2, "data_dir": few_digits})


@pytest.fixture(scope="module")
def through(planned, tmp_path_factory):
    return run_sweep(planned, tmp_path_factory.mktemp("through") / "sweep", Quiet())


class Watching(Quiet):
    """Also keeps what is reported."""

    def __init__(self):
        super().__init__()
        self.reported, self.said = [], []

    def say(self, line):
        self.said.append(line)

    def shard_progressed(self, shard, progress):
        self.reported.append((shard.numbers, progress.stage, progress.place))


def test_same_rows(cluster, planned, through, tmp_path):
    folder, watcher = tmp_path / "sweep", Watching()
    rows = run_sweep(planned, folder, watcher, RayEngine())
    assert timeless(rows) == timeless(through) == timeless(read_rows(folder / "rows.jsonl"))
    assert sorted(watcher.finished) == [(0, 1), (2, 3)]
    assert watcher.reported
    assert not (folder / "shards").exists()


def test_begun_here_finished_there(cluster, planned, through, tmp_path):
    class Stopping(Quiet):
        def shard_finished(self, shard, rows):
            raise KeyboardInterrupt

    folder = tmp_path / "sweep"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(planned, folder, Stopping())
    assert len(read_rows(folder / "rows.jsonl")) == 2
    watcher = Quiet()
    assert timeless(run_sweep(read_sweep(folder), folder, watcher, RayEngine())) == timeless(through)
    assert watcher.finished == [(2, 3)]


def test_no_memory_halves_the_shard(cluster, planned, tmp_path, monkeypatch):
    def small(order, report):
        return Reply() if len(order.shard.members) > 1 else work(order, report)

    monkeypatch.setattr(RayEngine, "work", staticmethod(small))
    rows = run_sweep(Sweep(planned.members[:2], 2), tmp_path / "sweep", Quiet(), RayEngine())
    assert [row["member"] for row in rows] == [0, 1]
    assert "[\n    1\n  ]" in (tmp_path / "sweep" / "shards.json").read_text()


def test_error_on_the_command_line(cluster, command, tmp_path):
    options = ["--seeds", "0", "--epochs", "1", "--device", "cpu", "--engine", "ray"]
    assert refused(command("sweep", *options, "--out", tmp_path / "sweep", "--data-dir", tmp_path / "nowhere"), "nowhere")


def test_error_of_no_type_of_ours(cluster, planned, tmp_path, monkeypatch):
    def broken(order, report):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RayEngine, "work", staticmethod(broken))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_sweep(planned, tmp_path / "sweep", Quiet(), RayEngine())


def test_worker_killed(cluster, few_digits, tmp_path):
    """The process of a shard is killed in its second stage; another one goes on after the first."""
    planned = expand({"methods": ["bb"], "seeds": [0, 1], "epochs": 60, "data_dir": few_digits})

    class Killing(Watching):
        killed = None

        def shard_progressed(self, shard, progress):
            super().shard_progressed(shard, progress)
            if progress.stage == "pruned" and self.killed is None:
                self.killed = progress.place
                os.kill(int(progress.place.split()[1]), signal.SIGKILL)

    folder, watcher = tmp_path / "sweep", Killing()
    rows = run_sweep(planned, folder, watcher, RayEngine())
    assert watcher.killed is not None
    later = [stage for _, stage, place in watcher.reported if place != watcher.killed]
    assert "dense" not in later
    assert timeless(rows) == timeless(run_sweep(planned, tmp_path / "through", Quiet()))
    assert [row["member"] for row in read_rows(folder / "rows.jsonl")] == [0, 1]


def test_worker_that_always_dies(cluster, planned, tmp_path, monkeypatch):
    def dying(order, report):
        if order.shard.members[0].method == "l0":
            os._exit(1)
        return work(order, report)

    monkeypatch.setattr(RayEngine, "work", staticmethod(dying))
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with pytest.raises(ClusterError, match=r"models 3-4 died on the cluster \(WorkerCrashedError.*--resume"):
        run_sweep(planned, tmp_path / "sweep", Quiet(), RayEngine())


def test_error_in_a_worker(cluster, few_digits, through, tmp_path, monkeypatch):
    """It arrives as it is, and rows of other shards stay."""
    good = expand({**SETTINGS, "epochs": 2, "data_dir": few_digits}).members[:2]
    bad = expand({**SETTINGS, "epochs": 2, "data_dir": str(tmp_path / "nowhere")}).members[2:]
    folder = tmp_path / "sweep"

    def patient(order, report):
        started = time.monotonic()
        while order.shard.numbers[0] == 2 and not (folder / "rows.jsonl").exists() and time.monotonic() - started < 120:
            time.sleep(0.1)
        return work(order, report)

    monkeypatch.setattr(RayEngine, "work", staticmethod(patient))
    with pytest.raises(DataError, match="nowhere") as raised:
        run_sweep(Sweep((*good, *bad), 2), folder, Quiet(), RayEngine())
    assert type(raised.value) is DataError
    assert timeless(read_rows(folder / "rows.jsonl")) == timeless(through[:2])


def test_no_machine_large_enough(cluster, planned, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    with pytest.raises(InputError, match="needs 64 CPU"):
        run_sweep(planned, tmp_path / "sweep", Quiet(), RayEngine())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "no Ray cluster answers at ray://127.0.0.1:1"),
        ("nonsense", "no address of a Ray cluster"),
        ("http://127.0.0.1:80", "no address of a Ray cluster"),
        ("127.0.0.1:port", "no address of a Ray cluster"),
    ],
)
def test_nobody_answers(command, tmp_path, address, message):
    started = time.monotonic()
    result = command("sweep", "--seeds", "0", "--out", tmp_path / "sweep", "--engine", "ray", "--address", address)
    assert refused(result, message)
    assert time.monotonic() - started < 15
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(("scheme", "message"), [("", "nothing like one answers within 3 s"), ("ray://", "pip install 'ray[client]'")])
def test_something_else_answers(command, tmp_path, few_digits, monkeypatch, scheme, message):
    if scheme and importlib.util.find_spec("grpc") is not None:
        pytest.skip("Ray's client is installed")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_connection, "_SECONDS_TO_CONNECT", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        options = ["--engine", "ray", "--address", address, "--out", tmp_path / "sweep", "--data-dir", few_digits]
        assert refused(command("sweep", "--seeds", "0", "--device", "cpu", *options), message)


def test_ray_is_not_installed(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused(command("sweep", "--seeds", "0", "--out", tmp_path / "sweep", "--engine", "ray"), "pip install -e '.[ray]'")


def test_engines_by_name(command):
    assert refused(command("sweep", "--engine", "rya"), "unknown engine 'rya'", "Did you mean 'ray'")
    assert refused(command("sweep", "--address", "auto"), "give --engine ray")


def test_ray_is_imported_only_when_it_is_used():
    for path in Path(ray_engine.__file__).parents[1].rglob("*.py"):
        imported = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any(re.match(r"(import|from) ray\b", ast.unparse(node)) for node in imported), path


def sweep_process(*options):
    command = [sys.executable, "-m", "bayesprune", "sweep", "--engine", "ray", *map(str, options)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_driver_stopped(few_digits, tmp_path, stop):
    """A cluster of its own ends with the driver, however that ends; the sweep is taken up."""
    folder = tmp_path / "sweep"
    settings = ["--methods", "bb,l0", "--seeds", "0,1", "--epochs", "15", "--side-by-side", "2", "--device", "cpu"]
    process = sweep_process(*settings, "--data-dir", few_digits, "--out", folder)
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "pruned" in line:
            break
    places = [line.split("(process ")[1].split()[0] for line in seen if "(process " in line]
    os.killpg(process.pid, stop)
    rest = process.stderr.read()
    assert process.wait(60) == (-signal.SIGKILL if stop == signal.SIGKILL else 130)
    if stop == signal.SIGINT:
        assert f"--resume {folder} --engine ray" in rest
        assert "Traceback" not in rest
    waited = time.monotonic()
    while any(os.path.exists(f"/proc/{pid}") for pid in places):  # noqa: PTH110
        assert time.monotonic() - waited < 30
        time.sleep(0.2)
    again = sweep_process("--resume", folder)
    assert "Traceback" not in again.stderr.read()
    assert again.wait(120) == 0
    planned = expand({**SETTINGS, "epochs": 15, "data_dir": few_digits})
    assert timeless(read_rows(folder / "rows.jsonl")) == timeless(run_sweep(planned, tmp_path / "through", Quiet()))


@pytest.mark.slow
def test_node_removed(few_digits, tmp_path, capfd):
    """One of two machines is gone in the middle: its shard is done on the other."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    planned = expand({**SETTINGS, "epochs": 80, "data_dir": few_digits})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"]) for _ in range(2)]

    class Removing(Watching):
        removed = None

        def shard_progressed(self, shard, progress):
            super().shard_progressed(shard, progress)
            if len({numbers for numbers, stage, _ in self.reported if stage}) == 2 and self.removed is None:
                self.removed = threading.Thread(target=cluster.remove_node, args=(nodes[0], False))
                self.removed.start()

    try:
        watcher = Removing()
        rows = run_sweep(planned, tmp_path / "sweep", watcher, RayEngine(cluster.address))
        watcher.removed.join()
        places = [{place for numbers, _, place in watcher.reported if numbers == shard} for shard in ((0, 1), (2, 3))]
        assert sorted(map(len, places)) == [1, 2]
        assert any("is gone" in line for line in watcher.said)
        assert "Raylet" not in capfd.readouterr().out
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert timeless(rows) == timeless(run_sweep(planned, tmp_path / "through", Quiet()))
