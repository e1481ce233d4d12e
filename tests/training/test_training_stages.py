"""A run that is stopped anywhere and taken up ends exactly as one that was not."""

import errno
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesprune.errors import StorageError
from bayesprune.gates import METHODS, gates
from bayesprune.models import VGGLike
from bayesprune.storage import read_rows, read_tensors
from bayesprune.training import Recipe, StageRecipe, make_plan, run_stages
from bayesprune.training.plan import Plan
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.store import NoStore, RunStore
from bayesprune.training.watching import Silent

RECIPE = Recipe("tiny", {name: StageRecipe(epochs=2, lr=1e-2) for name in ("dense", "pruned", "dependent")})
EPOCHS = [(stage, epoch) for stage in ("dense", "pruned", "dependent") for epoch in (1, 2)]
STEPS = 3


class StoppedError(Exception):
    """The run is cut off here."""


class Countdown:
    """Stops the run when something has happened so many times."""

    def __init__(self, count):
        self.left = count

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            raise StoppedError


class StoppingWatcher(Silent):
    def __init__(self, event, count):
        self.event, self.countdown = event, Countdown(count)

    def step(self, loss):
        if self.event == "step":
            self.countdown()

    def stage_started(self, stage, epochs, steps, done):
        if self.event == "stage_started":
            self.countdown()

    def epoch_finished(self, row):
        if self.event == "epoch_finished":
            self.countdown()

    def stage_finished(self, result):
        if self.event == "stage_finished":
            self.countdown()


class StoppingStore(RunStore):
    """Cuts a run off right before or after the store does something."""

    def __init__(self, folder, operation, when, count):
        super().__init__(folder, {})
        self.operation, self.when, self.countdown = operation, when, Countdown(count)

    def perform(self, operation, *arguments):
        if (operation, "before") == (self.operation, self.when):
            self.countdown()
        getattr(RunStore, operation)(self, *arguments)
        if (operation, "after") == (self.operation, self.when):
            self.countdown()

    def save(self, tensors, record):
        self.perform("save", tensors, record)

    def append(self, row):
        self.perform("append", row)

    def take_up(self, rows):
        self.perform("take_up", rows)


@pytest.fixture(scope="module")
def run(make_network, make_source):
    def call(store, watcher=None, method="dbb"):
        plan = make_plan(method, RECIPE, 60, tradeoff=0.1 if method == "dbb" else None)
        (outcome,) = run_stages(
            [make_network()],
            [plan],
            make_source(),
            make_source(count=30, shuffle=False, seed=1),
            F.cross_entropy,
            store,
            watcher or Silent(),
        )
        return outcome

    return call


@pytest.fixture(scope="module")
def through(run):
    """The run that was never stopped."""
    return run(NoStore())


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def require_same(outcome, through, folder):
    assert timeless(outcome.results) == timeless(through.results)
    assert timeless(outcome.rows) == timeless(through.rows)
    assert read_rows(folder / "metrics.jsonl") == outcome.rows
    assert [(row["stage"], row["epoch"]) for row in outcome.rows] == EPOCHS
    state, expected = outcome.model.state_dict(), through.model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "dense.safetensors",
        "dependent.safetensors",
        "pruned.safetensors",
    ]


def test_rows_of_a_run(through):
    assert [(row["stage"], row["epoch"]) for row in through.rows] == EPOCHS
    assert [result["stage"] for result in through.results] == ["dense", "pruned", "dependent"]
    assert [result["epochs"] for result in through.results] == [2, 2, 2]
    for row in through.rows:
        assert set(row) == {"stage", "epoch", "loss", "error", "kept", "speedup", "memory", "seconds"}
        assert 0 <= row["error"] <= 100
    for stage in (0, 2, 4):
        assert 0 < through.rows[stage]["seconds"] <= through.rows[stage + 1]["seconds"]
    for result, last in zip(through.results, through.rows[1::2], strict=True):
        assert {key: result[key] for key in ("stage", "error", "kept", "speedup", "memory", "seconds")} == {
            key: last[key] for key in ("stage", "error", "kept", "speedup", "memory", "seconds")
        }


def test_run_that_is_kept_is_the_same(run, through, tmp_path):
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


@pytest.mark.parametrize(
    ("event", "count"),
    [
        *(("epoch_finished", count) for count in range(1, 7)),
        *((event, count) for event in ("stage_started", "stage_finished") for count in range(1, 4)),
    ],
)
def test_stopped_once(run, through, tmp_path, event, count):
    with pytest.raises(StoppedError):
        run(RunStore(tmp_path, {}), StoppingWatcher(event, count))
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


def test_stopped_after_every_epoch(run, through, tmp_path):
    for done in range(1, 7):
        with pytest.raises(StoppedError):
            run(RunStore(tmp_path, {}), StoppingWatcher("epoch_finished", 1))
        rows = read_rows(tmp_path / "metrics.jsonl")
        assert [(row["stage"], row["epoch"]) for row in rows] == EPOCHS[:done]
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


@pytest.mark.parametrize("step", [1, STEPS, STEPS + 1, 2 * STEPS + 1, 3 * STEPS + 2, 4 * STEPS, 5 * STEPS + 1, 6 * STEPS])
def test_stopped_within_an_epoch(run, through, tmp_path, step):
    with pytest.raises(StoppedError):
        run(RunStore(tmp_path, {}), StoppingWatcher("step", step))
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


def test_stopped_again_and_again(run, through, tmp_path):
    stops = 0
    for step in (2, 4, 2, 3, 5, 1, 4, 4, 4, 4, 7):
        try:
            outcome = run(RunStore(tmp_path, {}), StoppingWatcher("step", step))
            break
        except StoppedError:
            stops += 1
    else:
        outcome = run(RunStore(tmp_path, {}))
    assert stops >= 6
    require_same(outcome, through, tmp_path)


@pytest.mark.parametrize(
    ("operation", "when", "count"),
    [
        *(("append", when, count) for when in ("before", "after") for count in (1, 2, 3, 6)),
        *(("save", when, count) for when in ("before", "after") for count in (1, 2, 4, 6)),
        *(("take_up", when, count) for when in ("before", "after") for count in (1, 2, 4)),
    ],
)
def test_stopped_around_the_store(run, through, tmp_path, operation, when, count):
    """Between the row of an epoch and its checkpoint, for one."""
    with pytest.raises(StoppedError):
        run(StoppingStore(tmp_path, operation, when, count))
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stopped_between_a_finished_stage_and_the_removal_of_its_progress(run, through, tmp_path, monkeypatch, stage):
    countdown, unlink = Countdown(stage), Path.unlink

    def stop(path, missing_ok=False):
        if path.name == "current.safetensors":
            countdown()
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(StoppedError):
            run(RunStore(tmp_path, {}))
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


@pytest.mark.parametrize("count", range(2, 26, 3))
def test_disk_full_at_any_write(run, through, tmp_path, monkeypatch, count):
    sync, left = os.fsync, [count]

    def fill_up(descriptor):
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    store = RunStore(tmp_path, {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(StorageError, match="No space left"):
            run(store)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]
    require_same(run(RunStore(tmp_path, {})), through, tmp_path)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "dbb"])
def test_static_methods(run, tmp_path, method):
    with pytest.raises(StoppedError):
        run(RunStore(tmp_path, {}), StoppingWatcher("epoch_finished", 3), method)
    taken_up, expected = run(RunStore(tmp_path, {}), method=method), run(NoStore(), method=method)
    assert [result["stage"] for result in taken_up.results] == ["dense", "pruned"]
    assert timeless(taken_up.rows) == timeless(expected.rows)
    assert {gate.method for gate in gates(taken_up.model).values()} == {method}
    state = expected.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in taken_up.model.state_dict().items())


def test_finished_run_is_only_read(run, through, tmp_path):
    class NoTraining(Silent):
        def step(self, loss):
            raise AssertionError("a finished run was trained")

    first = run(RunStore(tmp_path, {}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = run(RunStore(tmp_path, {}), NoTraining())
    assert again.results == first.results
    assert again.rows == first.rows
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    require_same(again, through, tmp_path)


def test_seconds_go_on(run, tmp_path):
    with pytest.raises(StoppedError):
        run(RunStore(tmp_path, {}), StoppingWatcher("epoch_finished", 1))
    first = read_rows(tmp_path / "metrics.jsonl")[0]
    assert run(RunStore(tmp_path, {})).rows[0] == first


def test_checkpoint_of_a_finished_stage_is_its_model(run, tmp_path):
    outcome = run(RunStore(tmp_path, {}))
    tensors, description = read_tensors(tmp_path / "checkpoints" / "dependent.safetensors")
    assert description["results"] == [outcome.results[-1]]
    state = outcome.model.state_dict()
    assert {f"model/{name}" for name in state} == set(tensors)
    assert all(torch.equal(tensors[f"model/{name}"], state[name]) for name in state)


def test_watcher_hears_everything(run, tmp_path):
    heard = []

    class Listener:
        def stage_started(self, stage, epochs, steps, done):
            heard.append((stage, epochs, steps, done))

        def step(self, loss):
            heard.append("step")

        def epoch_finished(self, row):
            heard.append(row["epoch"])

        def stage_finished(self, result):
            heard.append(result["stage"])

    with pytest.raises(StoppedError):
        run(RunStore(tmp_path, {}), StoppingWatcher("epoch_finished", 3))
    run(RunStore(tmp_path, {}), Listener())
    epoch = ["step"] * STEPS
    assert heard == ["dense", ("pruned", 2, STEPS, 1), *epoch, 2, "pruned", ("dependent", 2, STEPS, 0), *epoch, 1, *epoch, 2, "dependent"]


def test_dense_stage_alone_trains_the_given_model(make_network, make_source):
    model = make_network()
    before = model[0].weight.clone()
    (outcome,) = run_stages([model], [make_plan("bb", RECIPE, 60)], make_source(), None, F.cross_entropy, NoStore(), Silent())
    assert isinstance(model, nn.Module)
    assert not gates(model)
    assert not torch.equal(model[0].weight, before)
    assert [row["error"] for row in outcome.rows] == [None] * 4


def test_pretraining_without_the_fixed_dropout_of_a_network():
    generator = torch.Generator().manual_seed(0)
    images = TensorDataset(torch.randn(16, 3, 32, 32, generator=generator), torch.arange(16) % 4)

    def pretrained(enabled, without_dropout):
        torch.manual_seed(0)
        network = VGGLike(4, groups=((4,), (4,)), hidden=4)
        network.fixed_dropout = enabled
        recipe = Recipe("tiny", {"dense": StageRecipe(epochs=1, without_dropout=without_dropout)})
        (run,) = run_stages(
            [network],
            [Plan("dense", recipe, ("dense",))],
            LoaderBatches(DataLoader(images, 8), "cpu"),
            None,
            F.cross_entropy,
            NoStore(),
            Silent(),
        )
        assert run.model.fixed_dropout is (enabled and not without_dropout)
        return run.model.fc2.weight.detach()

    assert torch.equal(pretrained(enabled=True, without_dropout=True), pretrained(enabled=False, without_dropout=False))
    assert not torch.equal(pretrained(enabled=True, without_dropout=True), pretrained(enabled=True, without_dropout=False))
