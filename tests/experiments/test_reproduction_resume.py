"""A reproduction that is stopped anywhere, or done in parts, ends with the rows of one that was not."""

import json
from dataclasses import replace

import pytest
import torch
from reproducing import EPOCHS, IMAGES, WEAK, Stopping, places, reproduce, small
from sweeping import timeless

import bayesprune.experiments.fleets as fleets
import bayesprune.experiments.main_job as main_job
import bayesprune.experiments.reproduction as reproduction
from bayesprune.errors import InputError, RunFolderError, StorageError
from bayesprune.experiments.reproduction import Places, run_reproduction
from bayesprune.storage import read_rows, write_rows
from bayesprune.training.lock import sole_use
from bayesprune.training.stages import run_stages
from bayesprune.training.store import RunStore
from bayesprune.training.watching import Silent

ASKED = small()
STEPS = IMAGES[0] // 100 * sum((EPOCHS["dense"], 2 * EPOCHS["pruned"], EPOCHS["dependent"]))


class Started(Silent):
    """Which stages were begun, after how many epochs."""

    def __init__(self):
        self.stages, self.said = [], []

    def say(self, line):
        self.said.append(line)

    def stage_started(self, stage, epochs, steps, done):
        self.stages.append((stage, done))


@pytest.fixture(scope="module")
def through(digits_folder, tmp_path_factory):
    return reproduce(ASKED, tmp_path_factory.mktemp("through"), digits_folder)


@pytest.fixture
def every_epoch(monkeypatch):
    """Fleets are stored after every epoch, as they are once a minute."""
    monkeypatch.setattr(RunStore, "seconds_between", 0.0)


def stop(folder, data, event, count, asked=ASKED, **options):
    with pytest.raises(KeyboardInterrupt):
        reproduce(asked, folder, data, Stopping(event, count), **options)


MORE = [
    *(("step", count) for count in (12, STEPS)),
    ("epoch_finished", 4),
    ("stage_started", 3),
    *(("stage_finished", count) for count in (1, 3, 4)),
    ("say", 3),
]


@pytest.mark.parametrize(
    ("event", "count"),
    [("step", 34), ("epoch_finished", 8), ("stage_finished", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)],
)
def test_stopped_once(digits_folder, tmp_path, through, every_epoch, event, count):
    stop(tmp_path, digits_folder, event, count)
    assert places(tmp_path).work.exists()
    assert timeless(reproduce(ASKED, tmp_path, digits_folder)) == timeless(through)
    assert timeless(read_rows(places(tmp_path).rows)) == timeless(through)
    assert not places(tmp_path).work.exists()


@pytest.mark.slow
def test_stopped_again_and_again(digits_folder, tmp_path, through, every_epoch):
    for _ in range(9):
        stop(tmp_path, digits_folder, "epoch_finished", 1)
    assert timeless(reproduce(ASKED, tmp_path, digits_folder)) == timeless(through)


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.slow), 8])
def test_models_one_at_a_time(digits_folder, tmp_path, count):
    asked = small(seeds=[1], methods=("dense", "bb", "dbb"))
    rows = reproduce(asked, tmp_path / "through", digits_folder, side_by_side=1)
    stop(tmp_path / "stopped", digits_folder, "epoch_finished", count, asked, side_by_side=1)
    assert timeless(reproduce(asked, tmp_path / "stopped", digits_folder, side_by_side=1)) == timeless(rows)


def test_goes_on_after_the_last_checkpoint(digits_folder, tmp_path, every_epoch):
    stop(tmp_path, digits_folder, "epoch_finished", 4)
    watcher = Started()
    reproduce(small(methods=("dense", "dbb")), tmp_path, digits_folder, watcher)
    assert watcher.stages == [("pruned", 2), ("dependent", 0)]
    assert watcher.said == ["1 of 1: BB, then DBB, 4 models side by side"]


@pytest.mark.parametrize(
    ("name", "value", "methods"),
    [("gate_weights", (1.0, 2.0, 1.0), ("bb",)), ("hyperparameters", {"price": 0.7}, ("l0",))],
)
def test_a_fleet_is_not_gone_on_with_at_other_settings(digits_folder, tmp_path, every_epoch, monkeypatch, through, name, value, methods):
    asked = small(methods=methods)
    stop(tmp_path, digits_folder, "epoch_finished", 4, asked)
    with monkeypatch.context() as patch:
        patch.setattr(main_job, name, lambda *_: value)
        with pytest.raises(RunFolderError, match=r"gates.*remove this one to train its models anew"):
            reproduce(asked, tmp_path, digits_folder)
    (written,) = places(tmp_path).work.glob(f"{methods[0]}-*/config.json")
    written.write_text(json.dumps({"members": json.loads(written.read_text())["members"]}))  # As earlier versions wrote it.
    assert timeless(reproduce(asked, tmp_path, digits_folder)) == timeless([row for row in through if row["method"] in methods])


def test_rows_that_are_there_are_not_trained_again(digits_folder, tmp_path, through):
    write_results(tmp_path, through[:4] + through[6:])  # Without the last two of L0.
    watcher = Started()
    rows = reproduce(ASKED, tmp_path, digits_folder, watcher)
    assert watcher.stages == [("dense", 0), ("pruned", 0)]
    assert rows[:4] + rows[6:] == through[:4] + through[6:]
    assert [row["side_by_side"] for row in rows[4:6]] == [2, 2]
    for row, expected in zip(rows[4:6], through[4:6], strict=True):
        assert (row["tradeoff"], row["seed"], row["kept"]) == (expected["tradeoff"], expected["seed"], expected["kept"])
        assert row["error"] == pytest.approx(expected["error"], abs=1.0)


def test_another_seed_is_added(digits_folder, tmp_path):
    first = reproduce(small(seeds=[0], methods=("dense", "l0")), tmp_path, digits_folder)
    (tmp_path / "work").rename(tmp_path / "work of one seed")
    rows = reproduce(small(seeds=[0, 1], methods=("dense", "l0")), tmp_path, digits_folder)
    assert [row for row in rows if row["seed"] == 0] == first
    assert sum(row["seed"] == 1 for row in rows) == 3


@pytest.mark.parametrize("parts", [(("l0",), ("dbb",), ("dense",)), (("bb",), ("dense", "l0"), ("bb", "dbb"))], ids=str)
def test_in_parts(digits_folder, tmp_path, through, parts):
    for methods in parts:
        assert places(tmp_path).work.exists() == (methods != parts[0])
        rows = reproduce(small(methods=methods), tmp_path, digits_folder)
    assert timeless(rows) == timeless(through)
    watcher = Started()
    reproduce(ASKED, tmp_path, digits_folder, watcher)
    assert watcher.stages == watcher.said == []


def test_parts_share_the_pretrained_networks(digits_folder, tmp_path):
    reproduce(small(methods=("l0",)), tmp_path, digits_folder)
    watcher = Started()
    reproduce(small(methods=("bb",)), tmp_path, digits_folder, watcher)
    assert watcher.stages == [("pruned", 0)]


def test_rows_of_another_process_stay(digits_folder, tmp_path, through, monkeypatch):
    """Two devices, each with methods and a folder for checkpoints of its own, write to one file."""
    train = fleets.Fleets.train

    def meanwhile(self, fleet):
        rows = train(self, fleet)
        there = read_rows(places(tmp_path).rows) if places(tmp_path).rows.exists() else []
        others = [row for row in through if row["method"] == "l0" and row not in there]
        write_results(tmp_path, [*there, *others])
        return rows

    monkeypatch.setattr(fleets.Fleets, "train", meanwhile)
    assert timeless(reproduce(small(methods=("dense", "dbb")), tmp_path, digits_folder)) == timeless(through)
    assert timeless(read_rows(places(tmp_path).rows)) == timeless(through)


@pytest.mark.parametrize("count", [1, 3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4))])
def test_full_disk_when_rows_are_written(digits_folder, tmp_path, through, monkeypatch, count):
    """The checkpoints of a fleet are there until its rows are."""
    calls = []

    def full(path, rows):
        calls.append(path)
        if len(calls) == count:
            raise StorageError("no space left")
        write_rows(path, rows)

    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "write_rows", full)
        with pytest.raises(StorageError, match="no space"):
            reproduce(ASKED, tmp_path, digits_folder)
    watcher = Started()
    assert timeless(reproduce(ASKED, tmp_path, digits_folder, watcher)) == timeless(through)
    stages = [("dense", 0), ("pruned", 0), ("dependent", 0), ("pruned", 0)]
    assert watcher.stages == stages[(0, 1, 3, 4)[count - 1] :], "the first time nothing is trained yet"


@pytest.mark.parametrize(
    "change", [{"seeds": (0,)}, {"images": (150, 10_000)}, {"recipe": replace(ASKED.recipe.with_epochs(4))}, {"network": "lenet5-caffe"}]
)
def test_folder_of_another_protocol(digits_folder, tmp_path, change):
    stop(tmp_path, digits_folder, "step", 3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match=rf"another configuration \(it differs in .*{next(iter(change)).removeprefix('recipe')}"):
        reproduce(replace(ASKED, **change), tmp_path, digits_folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_folder_of_something_else(digits_folder, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty and not a run's folder"):
        reproduce(ASKED, tmp_path, digits_folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["work", "thesis.txt"]


def test_one_process_at_a_time(digits_folder, tmp_path):
    with sole_use(tmp_path / "work"), pytest.raises(RunFolderError, match="in use by another process"):
        reproduce(ASKED, tmp_path, digits_folder)
    assert not places(tmp_path).rows.exists()


@pytest.mark.parametrize("work", ["results", "results/models", "results/../results", ".", "link"])
def test_results_are_not_written_among_checkpoints(digits_folder, tmp_path, work):
    """Which are removed at the end."""
    (tmp_path / "link").symlink_to(tmp_path / "results")
    asked = Places(
        tmp_path / "results" / "rows.jsonl", tmp_path / "results" / "models", tmp_path / "results" / "compacted", tmp_path / work
    )
    with pytest.raises(InputError, match=r"is removed at the end: choose another one"):
        run_reproduction(ASKED, asked, Silent(), device="cpu", data_dir=str(digits_folder))


@pytest.mark.parametrize("place", ["results", "work"])
def test_no_folder_can_be_made(digits_folder, tmp_path, through, place):
    """As without permission, which the user of a container has everywhere; what is trained is not lost."""
    (tmp_path / place).write_text("a file")
    with pytest.raises(StorageError, match=rf"{place}.*(Not a directory|File exists)"):
        reproduce(ASKED, tmp_path, digits_folder)
    (tmp_path / place).unlink()
    watcher = Started()
    assert timeless(reproduce(ASKED, tmp_path, digits_folder, watcher)) == timeless(through)


def write_results(folder, rows):
    path = places(folder).rows
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)


@pytest.mark.slow
def test_another_size_of_fleets_on_the_way(digits_folder, tmp_path, through, every_epoch):
    """What is in progress cannot be gone on with, but nothing is in the way."""
    stop(tmp_path, digits_folder, "epoch_finished", 4, side_by_side=2)
    stop(tmp_path, digits_folder, "epoch_finished", 2, side_by_side=3)
    stop(tmp_path, digits_folder, "say", 2, side_by_side=2)  # After the first two models.
    there = read_rows(places(tmp_path).rows)
    assert [(row["method"], row["tradeoff"], row["seed"]) for row in there[2:]] == [(m, WEAK, s) for m in ("bb", "dbb") for s in (0, 1)]
    rows = reproduce(ASKED, tmp_path, digits_folder)
    assert [row for row in rows if row in there] == there
    assert [(row["method"], row["tradeoff"], row["seed"]) for row in rows] == [(r["method"], r["tradeoff"], r["seed"]) for r in through]
    assert not places(tmp_path).work.exists()


def test_complete_reproduction_leaves_the_checkpoints_of_a_variant(digits_folder, tmp_path, every_epoch):
    asked = small(methods=("dense", "dbb"))
    asked = replace(asked, tradeoffs={method: asked.tradeoffs[method] for method in ("dense", "bb", "dbb")})
    variant = replace(asked, recipe=replace(asked.recipe, shrink=True))
    of_variant = replace(places(tmp_path), rows=tmp_path / "variant.jsonl")
    with pytest.raises(KeyboardInterrupt):
        run_reproduction(variant, of_variant, Stopping("stage_started", 3), device="cpu", data_dir=str(digits_folder))
    reproduce(asked, tmp_path, digits_folder)
    watcher = Started()
    run_reproduction(variant, of_variant, watcher, device="cpu", data_dir=str(digits_folder))
    assert [stage for stage, _ in watcher.stages] == ["dependent"]


@pytest.mark.parametrize(("seeds", "message"), [((0, 1), "for 2 models side by side: give a smaller"), ((0,), "for one model")])
def test_no_memory(digits_folder, tmp_path, monkeypatch, seeds, message):
    def too_small(*arguments):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(fleets, "run_stages", too_small)
    with pytest.raises(InputError, match=message):
        reproduce(small(seeds=seeds), tmp_path, digits_folder)


def test_goes_on_with_the_models_that_have_not_diverged(digits_folder, tmp_path, monkeypatch, every_epoch):
    def spoilt(models, plans, *rest):
        runs = run_stages(models, plans, *rest)
        if plans[0].method == "bb":
            runs[1].results = [{"status": "diverged", "reason": "spoilt"}]
        return runs

    monkeypatch.setattr(fleets, "run_stages", spoilt)
    asked = small(methods=("dense", "dbb"))
    rows = reproduce(asked, tmp_path / "through", digits_folder)
    assert [row["status"] for row in rows if row["seed"] == 1] == ["finished", "diverged", "finished", "diverged", "finished"]
    stop(tmp_path / "stopped", digits_folder, "epoch_finished", 6, asked)
    assert timeless(reproduce(asked, tmp_path / "stopped", digits_folder)) == timeless(rows)
