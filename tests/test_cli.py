import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from refusals import refused

import bayesprune
from bayesprune.cli import as_command, running
from bayesprune.data import load_mnist
from bayesprune.data.folders import DATA_VARIABLE
from bayesprune.errors import DataError, InputError
from bayesprune.training.recipes import find_recipe

STAGE_KEYS = {"stage", "error", "kept", "speedup", "memory", "seconds"}


def plain(text):
    """Without the frames and line breaks that rich puts around a help text."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_version(command):
    result = command("--version")
    assert (result.code, result.out) == (0, f"bayesprune {bayesprune.__version__}\n")


def test_module_runs_as_a_program():
    result = subprocess.run([sys.executable, "-m", "bayesprune", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"bayesprune {bayesprune.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--help",), ("run", "data", "Examples", "bayesprune run")),
        (
            ("run", "--help"),
            ("Examples", "bayesprune run --network lenet5-caffe --tradeoff 4", "bayesprune run --resume runs/", "--kl-scale"),
        ),
        (("data", "--help"), ("Examples", "bayesprune data --download cifar10")),
    ],
)
def test_help_has_examples(command, monkeypatch, arguments, parts):
    monkeypatch.setenv("COLUMNS", "160")
    result = command(*arguments)
    assert result.code == 0
    for part in parts:
        assert part in plain(result.out)


def test_help_names_every_option(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = command("run", "--help").out
    for name in ("network", "dataset", "method", "recipe", "tradeoff", "kl-scale", "epochs", "seed", "device", "data-dir", "out", "resume"):
        assert f"--{name} " in text


def test_no_command_shows_the_help(command):
    result = command()
    assert "Usage" in result.out + result.err


@pytest.mark.parametrize(
    "arguments",
    [("train",), ("run", "--netwrok", "x"), ("run", "--epochs", "three"), ("run", "--seed", "1.5"), ("run", "--kl-scale", "much")],
)
def test_usage_errors(command, arguments):
    result = command(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err
    assert "Error" in result.err


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--method", "dbbb"), ("unknown method 'dbbb'", "Did you mean 'dbb'?", "vib")),
        (("--dataset", "nmist"), ("no data set is called 'nmist'", "Did you mean 'mnist'?")),
        (("--network", "lenet-300-500"), ("no network is called 'lenet-300-500'", "lenet5-caffe")),
        (("--recipe", "fsat"), ("unknown recipe 'fsat'", "Did you mean 'fast'?")),
        (("--device", "gpu"), ("device 'gpu' cannot be used here", "choose 'cuda'", "'cpu' always works")),
        (("--device", "cuda:99"), ("device 'cuda:99' cannot be used here",)),
        (("--device", "meta"), ("device 'meta' cannot be used here",)),
        (("--kl-scale", "-1"), ("kl_scale must be finite and not negative",)),
        (("--kl-scale", "nan"), ("kl_scale must be finite and not negative",)),
        (("--kl-scale", "inf"), ("kl_scale must be finite and not negative",)),
        (("--tradeoff", "0"), ("trade-off is a finite number above zero",)),
        (("--tradeoff", "nan"), ("trade-off is a finite number above zero",)),
        (("--epochs", "0"), ("at least 1",)),
        (("--epochs", "-3"), ("at least 1",)),
        (("--network", "vgg-like", "--dataset", "mnist"), ("vgg-like is made for cifar10, cifar100, not for mnist", "--network")),
        (("--network", "vgg-like"), ("cifar10 is not in",)),
        (("--dataset", "cifar10"), ("lenet-500-300 is made for mnist, not for cifar10",)),
        (("--tradeoff", "4", "--kl-scale", "2"), ("--kl-scale takes the place of --tradeoff",)),
        (("--method", "cd", "--tradeoff", "4"), ("has no trade-off",)),
    ],
    ids=" ".join,
)
def test_bad_options(command, tmp_path, digits_folder, options, parts):
    result = command("run", "--out", tmp_path / "run", "--data-dir", digits_folder, *options)
    assert refused(result, *parts)
    assert "run folder:" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_out_below_a_file(command, tmp_path, digits_folder):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        assert refused(command("run", "--out", path, "--data-dir", digits_folder), "cannot make the folder", str(path))


def test_folder_without_data(command, tmp_path):
    (tmp_path / "data").mkdir()
    for folder in (tmp_path / "data", tmp_path / "missing"):
        assert refused(command("run", "--out", tmp_path / "run", "--data-dir", folder), str(folder), "train-images-idx3-ubyte")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [("data",), ("data", "--download", "cifar10"), ("run", "--out", "run")], ids=" ".join)
def test_file_instead_of_a_data_folder(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "images.gz"
    file.touch()
    assert refused(command(*arguments, "--data-dir", file), f"the data folder {file} is a file", f"such as {tmp_path}")
    monkeypatch.setenv(DATA_VARIABLE, str(file))
    assert refused(command(*arguments), f"{DATA_VARIABLE} names {file}, which is a file")
    assert list(tmp_path.iterdir()) == [file]


def test_folder_of_an_unknown_user(command, tmp_path):
    assert refused(command("run", "--out", tmp_path / "run", "--data-dir", "~no-such-user/data"), "no such home folder")


def change(path: Path, how):
    path.write_bytes(how(path.read_bytes()))


DAMAGE = {
    "truncated": (lambda folder: change(folder / "train-images-idx3-ubyte", lambda content: content[:-5]), "truncated"),
    "truncated gz": (lambda folder: compress_and_cut(folder / "train-images-idx3-ubyte"), "gzip file is truncated"),
    "wrong magic": (lambda folder: change(folder / "t10k-labels-idx1-ubyte", lambda content: b"\1" + content[1:]), "wrong magic number"),
    "another length": (
        lambda folder: change(folder / "train-labels-idx1-ubyte", lambda content: content[:4] + b"\0\0\0\x0a" + content[8:18]),
        "600 images but 10 labels",
    ),
    "label out of range": (
        lambda folder: change(folder / "train-labels-idx1-ubyte", lambda content: content[:-1] + b"\x0b"),
        "out of range",
    ),
    "missing": (lambda folder: (folder / "t10k-images-idx3-ubyte").unlink(), "no t10k-images-idx3-ubyte"),
}


def compress_and_cut(path):
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes(), compresslevel=1)[:-1000])
    path.unlink()


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_data(command, tmp_path, make_digits, damage, message):
    folder = make_digits(tmp_path / "data")
    damage(folder)
    assert refused(command("run", "--out", tmp_path / "run", "--data-dir", folder), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("network", ["lenet-500-300", "lenet5-caffe"])
def test_images_of_another_size(command, tmp_path, make_digits, network):
    folder = make_digits(tmp_path / "data", size=14)
    result = command("run", "--network", network, "--epochs", "1", "--out", tmp_path / "run", "--data-dir", folder)
    assert refused(result, "14", "28", network)
    assert not (tmp_path / "run").exists()


def test_table_of_data_sets(command, monkeypatch, tmp_path):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    result = command("data")
    assert result.code == 0
    for part in ("mnist", "cifar10", "cifar100", "60,000 + 10,000", "50,000 + 10,000", "inside the package"):
        assert part in result.out
    for folder in (tmp_path, tmp_path / "old[1]", tmp_path / "new[bold]"):
        unfolded = re.sub(r"[│\s]", "", command("data", "--data-dir", folder).out)
        assert f"notin{folder}" in unfolded


def test_download_of_something_unknown(command):
    assert refused(command("data", "--download", "nonsense"), "no data set is called 'nonsense'", "cifar100")


def test_download_of_what_is_there(command, digits_folder):
    result = command("data", "--download", "mnist", "--data-dir", digits_folder)
    assert (result.code, result.out) == (0, "mnist: 600 training and 200 test images are in place\n")


def test_files_of_a_run(finished):
    files = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    stages = {f"checkpoints/{stage}.safetensors" for stage in ("dense", "pruned", "dependent")}
    left = {"compacted.safetensors", "certificate.json"}
    assert files == {"config.json", "metrics.jsonl", "summary.json", "kept-units.png"} | left | stages


def test_form_of_the_summary(finished, digits_folder):
    summary = json.loads((finished / "summary.json").read_text())
    assert [stage["stage"] for stage in summary["stages"]] == ["dense", "pruned", "dependent", "compacted"]
    for stage in summary["stages"]:
        assert set(stage) >= STAGE_KEYS
        assert 0 <= stage["error"] <= 100
        assert 0 < stage["memory"] <= 105, "dependent gates have a memory of their own"
        assert stage["speedup"] > 0.9
        assert stage["seconds"] > 0
        assert len(stage["kept"]) == 3
    assert summary["stages"][0]["kept"] == [784, 500, 300]
    assert summary["stages"][0]["speedup"] == 1
    assert summary["stages"][0]["memory"] == 100
    assert (summary["status"], summary["network"], summary["dataset"], summary["method"]) == ("finished", "lenet-500-300", "mnist", "dbb")
    assert (summary["seed"], summary["epochs"], summary["device"], summary["data_dir"]) == (3, 1, "cpu", str(digits_folder))
    assert summary["tradeoff"] == json.loads((finished / "config.json").read_text())["tradeoff"] == find_recipe("fast").tradeoffs["bb"]
    assert summary["version"] == bayesprune.__version__
    assert all(summary[key] for key in ("hardware", "torch", "python"))


def test_form_of_the_metrics(finished):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["epoch"]) for row in rows] == [("dense", 1), ("pruned", 1), ("dependent", 1)]
    assert all(set(row) == STAGE_KEYS | {"epoch", "loss"} for row in rows)


def test_what_a_run_prints(command, tmp_path, digits_folder):
    folder = tmp_path / "run[seed1]"
    result = command("run", "--method", "vib", "--out", folder, "--data-dir", digits_folder, "--epochs", "1", "--device", "cpu")
    assert result.code == 0
    assert result.err.splitlines()[0] == f"run folder: {folder}"
    for stage in ("dense", "pruned"):
        assert re.search(rf"^{stage} +epoch +1 of 1  loss .* error .* s$", result.err, re.MULTILINE)
        assert re.search(rf"^│ {stage} +│ +[\d.]+ │ \d+-\d+-\d+ +│ +[\d.]+ │ +[\d.]+ │ +\d+ │$", result.out, re.MULTILINE)
    assert "dependent" not in result.out
    assert re.search(r"^measured at batch 64: [\d.]+ ms, dense [\d.]+ ms, [\d.]+x as fast \(xFLOPs [\d.]+\)$", result.out, re.MULTILINE)
    assert f"written to {folder}: compacted.safetensors" in result.out


def test_compacted_stage_of_a_run(finished, digits_folder):
    *_, dependent, compacted = json.loads((finished / "summary.json").read_text())["stages"]
    certificate = json.loads((finished / "certificate.json").read_text())
    assert compacted["error"] == dependent["error"], "removal changes nothing"
    assert compacted["difference"] == certificate["max_rel_error"] < 1e-5
    assert [timing["batch_size"] for timing in compacted["latency"]] == [1, 64]
    assert all(timing["dense"] > 0 and timing["compacted"] > 0 for timing in compacted["latency"])
    network = bayesprune.load(finished / "compacted.safetensors")
    assert network.certificate == certificate
    images = load_mnist(digits_folder).test.images[:5] / 255
    assert network(images).shape == (5, 10)


def test_default_folder(command, tmp_path, monkeypatch, digits_folder):
    monkeypatch.chdir(tmp_path)
    assert command("run", "--method", "bb", "--data-dir", digits_folder, "--epochs", "1", "--device", "cpu").code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-lenet-500-300-bb", folder.name)
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("options", "gpu", "expected"),
    [
        ((), False, {"network": "lenet-500-300", "dataset": "mnist", "method": "dbb", "recipe": "fast", "device": "cpu", "seed": 0}),
        ((), True, {"recipe": "paper", "device": "cuda"}),
        (("--device", "cpu"), True, {"recipe": "fast", "device": "cpu"}),
        (("--recipe", "paper"), False, {"recipe": "paper", "device": "cpu"}),
        (("--network", "vgg-like"), False, {"dataset": "cifar10"}),
        (("--network", "vgg-like", "--dataset", "cifar100"), False, {"dataset": "cifar100"}),
        (("--kl-scale", 2, "--epochs", 4, "--seed", 5), False, {"kl_scale": 2.0, "tradeoff": None, "epochs": 4, "seed": 5}),
        (("--before-norm",), False, {"before_norm": True}),
        (("--after-activation",), False, {"before_norm": False}),
    ],
)
def test_options_and_their_defaults(command, monkeypatch, tmp_path, options, gpu, expected):
    configurations = []

    def stop(config, folder, watcher, ranks):
        configurations.append(asdict(config))
        raise InputError("not now")

    monkeypatch.setattr(running, "run_main_job", stop)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert refused(command("run", "--out", tmp_path / "run", *options), "not now")
    assert configurations[0].items() >= expected.items()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["user", "scheduler"])
def test_stopped(command, tmp_path, monkeypatch, digits_folder, number):
    def stop(*arguments):
        os.kill(os.getpid(), number)
        time.sleep(5)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("interrupts are ignored here, as they are by what a shell runs in the background")
    monkeypatch.setattr(running, "run_main_job", stop)
    result = command("run", "--out", tmp_path / "run", "--data-dir", digits_folder)
    assert result.code == 130
    assert "--resume" in result.err
    assert "Traceback" not in result.err


def test_programs_beside_the_command_line_end_alike(capsys):
    def failing():
        raise DataError("there is no such folder; make one")

    with pytest.raises(SystemExit) as ended:
        as_command(failing)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: there is no such folder; make one\n"
