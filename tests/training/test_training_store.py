import json
from pathlib import Path

import pytest
import torch

from bayesprune.errors import RunFolderError, StorageError
from bayesprune.storage import read_rows, write_tensors
from bayesprune.training.lock import LOCK
from bayesprune.training.store import NoStore, RunStore, StageRecord, claim_folder, run_store

CONFIGURATION = {"network": "lenet", "epochs": 3, "weights": (1.0, 2.0), "data": None, "stages": {"dense": {"lr": 0.1, "epochs": 3}}}
TENSORS = {"model/weight": torch.ones(2), "optimizer/step/weight": torch.tensor(3.0)}
RESULT = {"stage": "dense", "error": 1.0}


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "run", CONFIGURATION)


def test_folder_of_a_new_run(tmp_path):
    RunStore(tmp_path / "deep" / "run", CONFIGURATION)
    path = tmp_path / "deep" / "run" / "config.json"
    assert json.loads(path.read_text()) == {**CONFIGURATION, "weights": [1.0, 2.0]}
    assert {entry.name for entry in path.parent.iterdir()} == {"config.json", "checkpoints"}


def test_configuration_is_written_first(tmp_path, monkeypatch):
    def stop(path):
        if path.name == "checkpoints":
            raise StorageError("stopped here")
        path.mkdir()

    monkeypatch.setattr("bayesprune.training.store.make_folder", stop)
    with pytest.raises(StorageError):
        RunStore(tmp_path / "run", CONFIGURATION)
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["config.json"]


def test_folder_of_the_same_run(store):
    before = (store.folder / "config.json").stat().st_mtime_ns
    RunStore(store.folder, dict(reversed(CONFIGURATION.items())))
    assert (store.folder / "config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epochs": 4}, "epochs (3 there, 4 here)"),
        ({"epochs": 4, "network": "vgg"}, "epochs (3 there, 4 here), network ('lenet' there, 'vgg' here)"),
        ({"extra": 1}, "extra (None there, 1 here)"),
        ({"weights": (1.0,)}, "weights ([1.0, 2.0] there, [1.0] here)"),
        ({"data": "/data"}, "data (None there, '/data' here)"),
        ({"stages": {"dense": {"lr": 0.2, "epochs": 3}}}, "stages.dense.lr (0.1 there, 0.2 here)"),
        ({"stages": dict.fromkeys("abcdefgh", 1)}, "stages.e (None there, 1 here) and 3 more"),
    ],
)
def test_folder_of_another_run(store, changes, named):
    before = (store.folder / "config.json").read_bytes()
    with pytest.raises(RunFolderError, match=r"another configuration \(it differs in .*\); choose another folder") as raised:
        RunStore(store.folder, CONFIGURATION | changes)
    assert str(store.folder) in str(raised.value)
    assert named in str(raised.value)
    assert (store.folder / "config.json").read_bytes() == before


def test_configuration_as_an_earlier_version_wrote_it(store):
    RunStore(store.folder, CONFIGURATION | {"data": "usual"}, CONFIGURATION)
    with pytest.raises(RunFolderError, match=r"differs in epochs \(3 there, 4 here\)\)"):
        RunStore(store.folder, CONFIGURATION | {"data": "usual", "epochs": 4}, CONFIGURATION | {"epochs": 4})


def test_option_that_is_missing_differs(store):
    with pytest.raises(RunFolderError, match="differs in network"):
        RunStore(store.folder, {name: value for name, value in CONFIGURATION.items() if name != "network"})


@pytest.mark.parametrize("there", ["[]", "3", "null", '"text"'])
def test_configuration_that_is_not_a_mapping(store, there):
    (store.folder / "config.json").write_text(there)
    with pytest.raises(RunFolderError, match="another configuration"):
        RunStore(store.folder, CONFIGURATION)


@pytest.mark.parametrize("there", ["", "{", '{"network": "len'])
def test_damaged_configuration(store, there):
    (store.folder / "config.json").write_text(there)
    with pytest.raises(StorageError, match=r"config\.json is damaged"):
        RunStore(store.folder, CONFIGURATION)


def test_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="not empty and not a run's folder"):
        claim_folder(tmp_path, CONFIGURATION)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_files_of_others_are_never_removed(tmp_path):
    (tmp_path / "film.mkv.part").write_text("a download")
    (tmp_path / ".film.part").write_text("another")
    with pytest.raises(RunFolderError, match="not empty"):
        RunStore(tmp_path, CONFIGURATION)
    assert {entry.name for entry in tmp_path.iterdir()} == {"film.mkv.part", ".film.part"}


def test_file_instead_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StorageError, match="cannot make the folder"):
            claim_folder(path, CONFIGURATION)


def test_run_that_was_killed_while_it_wrote_its_configuration(tmp_path):
    (tmp_path / ".config.json.4711.part").write_text('{"netw')
    store = RunStore(tmp_path, CONFIGURATION)
    assert store.load("dense") is None
    assert {entry.name for entry in tmp_path.iterdir()} == {"config.json", "checkpoints"}


def test_what_a_killed_run_left_half_written_is_removed(store):
    for path in (store.checkpoints / ".current.safetensors.4711.part", store.folder / ".metrics.jsonl.4711.part"):
        path.write_bytes(b"half")
    RunStore(store.folder, CONFIGURATION)
    assert not [path for path in store.folder.rglob("*") if path.name.endswith(".part")]


def test_nothing_kept_yet(store):
    assert store.load("dense") is None


def test_stage_in_progress(store):
    record = StageRecord("pruned", epoch=2, seconds=1.5, rows=[{"stage": "dense"}, {"stage": "pruned", "loss": 0.1}])
    store.save(TENSORS, record)
    tensors, found = store.load("pruned")
    assert found == record
    assert tensors.keys() == TENSORS.keys()
    assert store.load("dense") is None
    assert store.load("dependent") is None


def test_finished_stage_keeps_its_model_alone(store):
    store.save(TENSORS, StageRecord("dense", epoch=1))
    store.save(TENSORS, StageRecord("dense", epoch=2, results=[RESULT]))
    tensors, record = store.load("dense")
    assert (record.epoch, record.results) == (2, [RESULT])
    assert set(tensors) == {"model/weight"}
    assert [path.name for path in store.checkpoints.iterdir()] == ["dense.safetensors"]


def test_finished_stage_comes_before_its_progress(store):
    store.save(TENSORS, StageRecord("dense", epoch=2, results=[RESULT]))
    write_tensors(store.checkpoints / "current.safetensors", TENSORS, vars(StageRecord("dense", epoch=1)))
    assert store.load("dense")[1].epoch == 2


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 100])
@pytest.mark.parametrize("name", ["current", "dense"])
def test_damaged_checkpoint(store, name, content):
    (store.checkpoints / f"{name}.safetensors").write_bytes(content)
    with pytest.raises(StorageError, match=rf"{name}\.safetensors.*remove the file"):
        store.load("dense")


@pytest.mark.parametrize("description", [{}, {"stage": "dense", "colour": "red"}, {"epoch": 3}])
def test_file_that_is_not_of_a_stage(store, description):
    write_tensors(store.checkpoints / "current.safetensors", TENSORS, description)
    with pytest.raises(StorageError, match="not a checkpoint of a stage"):
        store.load("dense")


def test_metrics(store):
    store.take_up([{"epoch": 1}])
    store.append({"epoch": 2})
    assert read_rows(store.metrics) == [{"epoch": 1}, {"epoch": 2}]
    with store.metrics.open("a") as file:
        file.write('{"epoch": 3, "lo')
    store.take_up([{"epoch": 1}])
    assert read_rows(store.metrics) == [{"epoch": 1}]


def test_no_store_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = NoStore()
    store.save(TENSORS, StageRecord("dense", results=[RESULT]))
    store.append({})
    store.take_up([])
    assert store.load("dense") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".lock", LOCK])
def test_folder_that_is_refused_stays_as_it_is(tmp_path, name):
    for file in (name, "thesis.tex"):
        (tmp_path / file).write_text("mine")
    with pytest.raises(RunFolderError, match="not a run's folder"), run_store(tmp_path, CONFIGURATION):
        pass
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine", "thesis.tex": "mine"}


def test_folder_that_cannot_be_read(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StorageError, match=r"cannot read the folder .*: Permission denied"):
        claim_folder(tmp_path, CONFIGURATION)


def test_checkpoints_that_take_long_are_written_less_often(tmp_path):
    store = RunStore(tmp_path, {})
    assert store.is_due(True, since=0.1, cost=0.0)
    assert store.is_due(True, since=0.1, cost=0.2), "nobody minds"
    assert not store.is_due(True, since=9.0, cost=0.5)
    assert store.is_due(True, since=11.0, cost=0.5), "a twentieth of the time"
    assert not store.is_due(False, since=50.0, cost=0.0)
    assert store.is_due(False, since=61.0, cost=100.0)
