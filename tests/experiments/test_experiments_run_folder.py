"""What `bayesprune run` makes of the folder that it is given."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch

from bayesprune.artifact import load
from bayesprune.errors import RunFolderError, StorageError
from bayesprune.experiments import RunConfig, read_config, run_main_job
from bayesprune.experiments.main_job import check_config
from bayesprune.training.lock import sole_use
from bayesprune.training.recipes import find_recipe
from bayesprune.training.watching import Silent

USUAL = find_recipe("fast").tradeoffs["bb"]


class StoppedError(Exception):
    """The run is cut off here."""


class StopAfter(Silent):
    def __init__(self, epochs):
        self.left = epochs

    def epoch_finished(self, row):
        self.left -= 1
        if self.left <= 0:
            raise StoppedError


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_seconds(folder):
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in (*summary["stages"], *rows):
        assert row.pop("seconds") >= 0
        row.pop("latency", None)
    return summary, rows


def refused(result, *parts):
    assert result.code == 2
    assert "Traceback" not in result.err
    errors = [line for line in result.err.splitlines() if not line.startswith("run folder:") and "finished before" not in line]
    assert len(errors) == 1, result.err
    assert all(part in errors[0] for part in ("error: ", *parts))
    return True


@pytest.fixture(scope="module")
def config(digits_folder):
    return RunConfig(method="bb", epochs=2, data_dir=str(digits_folder))


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_main_job(config, folder, Silent())
    return folder


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(StoppedError):
        run_main_job(config, folder, StopAfter(3))
    return folder


@pytest.fixture
def finished(finished_once, tmp_path):
    return shutil.copytree(finished_once, tmp_path / "finished")


@pytest.fixture
def stopped(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "stopped")


def test_configuration_is_there_before_anything_else(config, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise StoppedError

    monkeypatch.setattr("bayesprune.experiments.main_job.TensorBatches", stop)
    with pytest.raises(StoppedError):
        run_main_job(config, tmp_path / "run", Silent())
    assert set(contents(tmp_path / "run")) == {"config.json"}
    usual = replace(config, tradeoff=USUAL, shrink=True)
    assert read_config(tmp_path / "run") == usual
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [stage["epochs"] for stage in stored.pop("stages").values()] == [2, 2, 2]
    assert stored.pop("gates") == {"kl_scale": USUAL}
    assert stored == asdict(usual)


def test_stopped_run_is_taken_up(command, finished_once, stopped):
    assert {path.name for path in (stopped / "checkpoints").iterdir()} == {"dense.safetensors", "current.safetensors"}
    result = command("run", "--resume", stopped)
    assert result.code == 0
    assert "pruned: going on after epoch 1 of 2" in result.err
    assert without_seconds(stopped) == without_seconds(finished_once)
    assert (stopped / "kept-units.png").exists()


def test_same_command_takes_a_stopped_run_up(command, config, finished_once, stopped):
    result = command("run", "--method", "bb", "--epochs", "2", "--device", "cpu", "--data-dir", config.data_dir, "--out", stopped)
    assert result.code == 0
    assert without_seconds(stopped) == without_seconds(finished_once)


def test_finished_run_is_left_as_it_is(command, finished):
    command("run", "--resume", finished)
    before = contents(finished)
    result = command("run", "--resume", finished)
    assert result.code == 0
    assert "epoch" not in result.err
    assert "pruned" in result.out
    assert contents(finished) == before


def test_run_with_only_its_configuration_starts_over(command, config, finished_once, tmp_path):
    shutil.copy(finished_once / "config.json", tmp_path)
    assert command("run", "--resume", tmp_path).code == 0
    assert without_seconds(tmp_path) == without_seconds(finished_once)


def test_recipe_that_has_changed_since(command, config, finished_once, tmp_path):
    """What a recipe's name meant when the run began is part of its configuration."""
    stored = json.loads((finished_once / "config.json").read_text())
    stored["stages"]["pruned"]["lr"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert refused(command("run", "--resume", tmp_path), "differs in stages")


def test_finished_run_needs_neither_its_data_nor_its_device(command, finished_once, tmp_path):
    shutil.copytree(finished_once, tmp_path / "run")
    for name in ("config.json", "summary.json"):
        content = json.loads((tmp_path / "run" / name).read_text()) | {"data_dir": str(tmp_path / "gone"), "device": "cuda:7"}
        (tmp_path / "run" / name).write_text(json.dumps(content))
    before = (tmp_path / "run" / "summary.json").read_bytes()
    assert command("run", "--resume", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def test_folder_from_the_environment_is_remembered(command, digits_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESPRUNE_DATA", str(digits_folder))
    assert command("run", "--method", "bb", "--epochs", 1, "--device", "cpu", "--out", tmp_path / "run").code == 0
    assert read_config(tmp_path / "run").data_dir == str(digits_folder)


def test_resume_from_another_place(command, tmp_path, monkeypatch, make_digits):
    """A data folder that was given relative to where the run was started is found from anywhere."""
    (tmp_path / "elsewhere").mkdir()
    make_digits(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert command("run", "--method", "bb", "--epochs", "1", "--device", "cpu", "--data-dir", "data", "--out", "run").code == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("run", "--resume", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    "option",
    [("--seed", 0), ("--tradeoff", USUAL), ("--method", "bb"), ("--epochs", 2), ("--network", "lenet-500-300"), ("--device", "cpu")],
)
def test_options_that_agree_may_be_repeated(command, finished, option):
    assert command("run", "--resume", finished, *option).code == 0


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        (("--seed", 1), ("seed 0, not 1",)),
        (("--method", "dbb"), ("method bb, not dbb",)),
        (("--epochs", 3), ("epochs 2, not 3",)),
        (("--kl-scale", 2), ("kl-scale None, not 2.0",)),
        (("--tradeoff", "nan"), (f"tradeoff {USUAL}, not nan",)),
        (("--network", "lenet5-caffe"), ("network lenet-500-300, not lenet5-caffe",)),
        (("--data-dir", "/elsewhere"), ("data-dir", "not /elsewhere")),
        (("--before-norm",), ("before-norm False, not True",)),
        (("--out", "/elsewhere/run"), ("/elsewhere/run",)),
    ],
    ids=str,
)
def test_options_that_contradict_the_run(command, stopped, option, parts):
    before = contents(stopped)
    assert refused(command("run", "--resume", stopped, *option), "--resume", *parts)
    assert contents(stopped) == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--epochs", 3), "epochs (2 there, 3 here), stages.dense.epochs (2 there, 3 here), "),
        (("--epochs", 2, "--seed", 1), "seed (0 there, 1 here));"),
        (("--epochs", 2, "--tradeoff", 2), f"gates.kl_scale ({USUAL} there, 2.0 here), tradeoff ({USUAL} there, 2.0 here));"),
    ],
)
def test_folder_of_another_configuration(command, config, finished, options, named):
    before = contents(finished)
    result = command("run", "--out", finished, "--method", "bb", "--device", "cpu", "--data-dir", config.data_dir, *options)
    assert refused(result, str(finished), f"differs in {named}")
    assert contents(finished) == before


def test_run_is_not_taken_up_at_other_settings(command, stopped, finished_once, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("bayesprune.experiments.main_job.gate_weights", lambda *_: (1.0, 2.0, 1.0))
        assert refused(command("run", "--resume", stopped), "gates.kl_scale")
    path = stopped / "config.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "gates"}))
    assert command("run", "--resume", stopped).code == 0, "earlier versions did not write them"
    assert without_seconds(stopped) == without_seconds(finished_once)


def without_tradeoff(folder):
    """As earlier versions wrote the configuration where no trade-off was given."""
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | {"tradeoff": None}))
    return folder


@pytest.mark.parametrize("option", [(), ("--tradeoff", USUAL)], ids=str)
def test_folders_of_earlier_versions(command, finished_once, finished, stopped, option):
    for folder in (without_tradeoff(finished), without_tradeoff(stopped)):
        assert command("run", "--resume", folder, *option).code == 0
        assert without_seconds(folder) == without_seconds(finished_once)
        assert refused(command("run", "--resume", folder, "--tradeoff", 2), f"tradeoff {USUAL}, not 2.0")


@pytest.mark.parametrize("method", ["cd", "bb"])
def test_run_without_a_tradeoff_is_taken_up(command, config, tmp_path, method):
    options = ("--kl-scale", 2) if method == "bb" else ()
    arguments = ("--method", method, "--epochs", 1, "--device", "cpu", "--data-dir", config.data_dir, *options)
    assert command("run", "--out", tmp_path / "run", *arguments).code == 0
    assert read_config(tmp_path / "run").tradeoff is None
    (tmp_path / "run" / "summary.json").unlink()
    assert command("run", "--resume", tmp_path / "run").code == 0


@pytest.mark.parametrize("damage", ["truncated", "flip", "missing"])
def test_damaged_network_is_made_again(command, finished_once, finished, damage):
    path = finished / "compacted.safetensors"
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(truncate(whole) if damage == "truncated" else flip(whole))
    result = command("run", "--resume", finished)
    assert result.code == 0
    assert f"{path} is missing or damaged: making it again" in result.err
    assert " epoch " not in result.err, "nothing is trained again"
    assert load(path).certificate == load(finished_once / path.name).certificate
    assert without_seconds(finished) == without_seconds(finished_once)


def test_finished_run_without_checkpoints_says_what_it_will_train(command, finished_once, finished):
    shutil.rmtree(finished / "checkpoints")
    (finished / "compacted.safetensors").unlink()
    result = command("run", "--resume", finished)
    assert result.code == 0
    assert "stages that are not there are trained again" in result.err
    assert without_seconds(finished) == without_seconds(finished_once)


def test_folder_name_that_is_too_long(command, config):
    name = "a" * 300
    for arguments in (("--out", name, "--data-dir", config.data_dir), ("--resume", name), ("--data-dir", name)):
        assert refused(command("run", *arguments, *(("--device", "cpu") if "--resume" not in arguments else ())), "File name too long")


def test_folder_in_use(command, finished_once, stopped):
    before = contents(stopped)
    with sole_use(stopped):
        assert refused(command("run", "--resume", stopped), f"{stopped} is in use by another process")
    assert contents(stopped) == before
    assert command("run", "--resume", stopped).code == 0
    assert set(contents(stopped)) - {"kept-units.png"} == set(contents(finished_once))


def test_folder_of_something_else(command, config, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert refused(command("run", "--out", tmp_path, "--device", "cpu", "--data-dir", config.data_dir), "not empty and not a run's folder")
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_resume_without_a_run(command, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        assert refused(command("run", "--resume", folder), f"{folder} is not a run's folder")
    assert contents(tmp_path) == {"file": b""}


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", '{"epochs": 2}'])
def test_damaged_configuration(command, stopped, content):
    (stopped / "config.json").write_text(content)
    assert refused(command("run", "--resume", stopped), "config.json")
    with pytest.raises(StorageError):
        read_config(stopped)


@pytest.mark.parametrize(
    "change",
    [{"colour": "red"}, {"network": 5}, {"network": []}, {"epochs": "three"}, {"seed": None}, {"kl_scale": "much"}, {"device": 0}],
    ids=str,
)
def test_configuration_with_a_wrong_entry(command, config, stopped, change):
    (stopped / "config.json").write_text(json.dumps(asdict(config) | change))
    assert refused(command("run", "--resume", stopped), "config.json", next(iter(change)))


def test_configuration_with_whole_numbers(config, tmp_path):
    whole = RunConfig(tradeoff=4, kl_scale=2)
    (tmp_path / "config.json").write_text(json.dumps(asdict(whole)))
    assert read_config(tmp_path) == whole


def test_read_config_of_a_folder_without_one(tmp_path):
    with pytest.raises(RunFolderError, match=r"has no config\.json"):
        read_config(tmp_path)


def truncate(content):
    return content[: len(content) // 2]


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("name", ["current", "dense"])
@pytest.mark.parametrize(
    "damage", [truncate, flip, lambda content: b"", lambda content: b"x" * 1000], ids=["truncated", "flip", "empty", "foreign"]
)
def test_damaged_checkpoint(command, stopped, name, damage):
    path = stopped / "checkpoints" / f"{name}.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    before = contents(stopped / "checkpoints")
    assert refused(command("run", "--resume", stopped), str(path), "remove the file")
    assert contents(stopped / "checkpoints") == before


@pytest.mark.parametrize("names", [("current",), ("dense",), ("dense", "current")])
def test_damaged_checkpoint_may_be_removed(command, stopped, finished_once, names):
    for name in names:
        (stopped / "checkpoints" / f"{name}.safetensors").unlink()
    assert command("run", "--resume", stopped).code == 0
    assert without_seconds(stopped) == without_seconds(finished_once)


def test_checkpoint_of_another_network(command, stopped, tmp_path, digits_folder):
    other = tmp_path / "other"
    with pytest.raises(StoppedError):
        run_main_job(RunConfig(network="lenet5-caffe", epochs=2, data_dir=str(digits_folder)), other, StopAfter(2))
    shutil.copy(other / "checkpoints" / "dense.safetensors", stopped / "checkpoints" / "dense.safetensors")
    assert refused(command("run", "--resume", stopped), "does not belong to this model")


def test_a_folder_of_before_shrinking_is_gone_on_with(config, tmp_path):
    """Earlier versions trained the whole network, in float32, and did not write that down."""
    folder = tmp_path / "run"
    config = replace(config, shrink=False)
    with pytest.raises(StoppedError):
        run_main_job(config, folder, StopAfter(2))
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: value for name, value in written.items() if name not in ("shrink", "precision")}))
    assert read_config(folder) == replace(config, tradeoff=USUAL)
    assert run_main_job(read_config(folder), folder, Silent())["status"] == "finished"


def test_shrinking_is_in_the_configuration(finished, config, command):
    assert json.loads((finished / "config.json").read_text())["shrink"] is True
    assert refused(command("run", "--resume", finished, "--no-shrink"), "shrink True, not False")
    assert refused(command("run", "--precision", "float64"), "precision is float32 or bfloat16, not 'float64'")


def test_bfloat16_needs_a_processor_made_for_it(command, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False, "cpu_name": "old"}, raising=False)
    assert refused(command("run", "--precision", "bfloat16", "--device", "cpu"), "bfloat16 is for GPUs, and for processors of which")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert check_config(RunConfig(precision="bfloat16")).name == "fast"
