"""`bayesprune reproduce`."""

import json
from dataclasses import replace

import pytest
import torch
from refusals import refused
from reproducing import Stopping, small
from reproduction import row

import bayesprune.cli.reproducing as reproducing
import bayesprune.experiments.fleets as fleets
from bayesprune.experiments.protocol import QUICK, protocol
from bayesprune.storage import read_rows, write_rows
from bayesprune.training.plan import usual_stages


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few(monkeypatch):
    """The protocol, of a few rows and epochs; what it was asked with is handed on."""

    def tiny(network, **asked):
        whole = protocol(network, **asked)
        tradeoffs = {method: whole.tradeoffs[method][:1] for method in ("dense", "l0", "bb", "dbb")}
        return replace(
            whole, recipe=whole.recipe.with_epochs(1), tradeoffs=tradeoffs, methods=tuple(m for m in whole.methods if m in tradeoffs)
        )

    monkeypatch.setattr(reproducing, "protocol", tiny)


def test_quick(command, there, few, digits_folder):
    first = command("reproduce", "lenet-500-300", "--quick", "--data-dir", digits_folder, "--device", "cpu")
    assert first.code == 0
    assert "This was --quick" in first.out
    assert "reproductions/quick/lenet-500-300-mnist.jsonl" in first.out
    rows = read_rows(there / "reproductions" / "quick" / "lenet-500-300-mnist.jsonl")
    assert [(found["method"], found["recipe"], found["seed"]) for found in rows] == [(m, "quick", 0) for m in ("dense", "l0", "bb", "dbb")]
    assert {path.name for path in (there / "reproductions").iterdir()} == {"quick"}
    assert not (there / "results").exists()
    assert "1 of 3: pretraining" in first.err
    assert "2 of 3: BB, then DBB" in first.err
    again = command("reproduce", "lenet-500-300", "--quick", "--data-dir", digits_folder, "--device", "cpu")
    assert (again.code, again.err) == (0, "")
    assert "nothing was trained" not in first.out
    said = "These rows were there: nothing was trained. To train them again, name another folder with --results."
    assert [line for line in again.out.splitlines() if "were there" not in line and "with --results" not in line] == first.out.splitlines()
    assert said in " ".join(again.out.split())


def test_parts_and_other_folders(command, there, few, digits_folder):
    options = (
        "--seeds",
        "3, 4",
        "--side-by-side",
        1,
        "--results",
        "mine",
        "--work",
        "at/work",
        "--data-dir",
        digits_folder,
        "--device",
        "cpu",
    )
    result = command("reproduce", "lenet-500-300", "--methods", "l0, dense", *options)
    assert result.code == 0
    assert "This was --quick" not in result.out
    rows = read_rows(there / "mine" / "lenet-500-300-mnist.jsonl")
    assert [(found["method"], found["seed"], found["recipe"]) for found in rows] == [
        (m, s, "paper") for m in ("dense", "l0") for s in (3, 4)
    ]
    assert (there / "at" / "work" / "config.json").exists()  # BB and DBB are to come.
    result = command("reproduce", "lenet-500-300", *options)
    assert result.code == 0
    assert len(read_rows(there / "mine" / "lenet-500-300-mnist.jsonl")) == 8
    assert not (there / "at" / "work").exists()


def test_diverged_rows_are_shown(command, there):
    whole = protocol("lenet-500-300", quick=True, methods=["dense"])
    rows = [
        row(entry.method, entry.tradeoff, entry.seed, 1.0, recipe="quick", epochs=QUICK.stages[usual_stages(entry.method)[-1]].epochs)
        for entry in whole.all_entries()
    ]
    rows[0] |= {"status": "diverged", "reason": "NaN", "error": None, "kept": None, "speedup": None, "memory": None}
    (there / "reproductions" / "quick").mkdir(parents=True)
    write_rows(there / "reproductions" / "quick" / "lenet-500-300-mnist.jsonl", rows)
    result = command("reproduce", "lenet-500-300", "--quick")
    assert result.code == 0
    assert "1 of them diverged" in result.out


def test_stopped(command, there, monkeypatch, digits_folder):
    class Bars(Stopping):
        def __init__(self, console):
            super().__init__("epoch_finished", 3)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            """Nothing to close."""

    monkeypatch.setattr(reproducing, "protocol", lambda network, **asked: small(seeds=[0]))
    arguments = ("reproduce", "lenet-500-300", "--data-dir", digits_folder, "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "ProgressBars", Bars)
        stopped = command(*arguments)
    assert stopped.code == 130
    assert stopped.err == "stopped; what is finished is kept: go on with the same command\n"
    assert [found["method"] for found in read_rows(there / "results" / "lenet-500-300-mnist.jsonl")] == ["dense"]
    assert command(*arguments).code == 0
    assert len(read_rows(there / "results" / "lenet-500-300-mnist.jsonl")) == 7


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("vgg-like",), ("lenet-500-300, lenet5-caffe, vgg-cifar10, vgg-cifar100, not of 'vgg-like'",)),
        (("lenet-500-30",), ("Did you mean 'lenet-500-300'",)),
        (("lenet-500-300", "--methods", "bb,xx"), ("no method 'xx'",)),
        (("lenet-500-300", "--methods", ""), ("no method ''",)),
        (("lenet-500-300", "--recipe", "fast"), ("'fast' is no recipe of our own: they are consistent, smooth, brief",)),
        (("lenet-500-300", "--recipe", "consistent", "--quick", "--methods", "bb"), ("leave --quick, --methods out",)),
        (("lenet-500-300", "--recipe", "nope", "--quick"), ("'nope' is no recipe of our own",)),
        (("lenet-500-300", "--seeds", "0,x"), ("--seeds takes whole numbers", "0,x")),
        (("lenet-500-300", "--seeds", "1,1"), ("each once",)),
        (("lenet-500-300", "--device", "tpu"), ("tpu",)),
        (("lenet-500-300", "--data-dir", "nowhere", "--device", "cpu"), ("nowhere",)),
        (("lenet-500-300", "--results", "a", "--work", "a", "--device", "cpu"), ("removed at the end",)),
        (("lenet-500-300", "--results", "a/b", "--work", ".", "--device", "cpu"), ("removed at the end",)),
    ],
)
def test_nonsense(command, there, arguments, parts):
    assert refused(command("reproduce", *arguments), *parts)
    assert not list(there.rglob("*.jsonl"))


def test_side_by_side_is_a_number_above_zero(command, there):
    assert command("reproduce", "lenet-500-300", "--side-by-side", 0).code == 2


@pytest.mark.parametrize(("content", "part"), [("{}\n", "line 1: the field 'status' is missing"), ("{\n", "damaged in line 1")])
def test_file_of_something_else(command, there, content, part):
    (there / "results").mkdir()
    (there / "results" / "lenet5-caffe-mnist.jsonl").write_text(content)
    assert refused(command("reproduce", "lenet5-caffe", "--device", "cpu"), "lenet5-caffe-mnist.jsonl", part)
    assert not (there / "reproductions").exists()


def test_rows_of_the_real_thing_and_of_quick_are_kept_apart(command, there):
    path = there / "mine" / "lenet-500-300-mnist.jsonl"
    path.parent.mkdir()
    write_rows(path, [row("bb", "1", 0, 1.5)])
    assert refused(command("reproduce", "lenet-500-300", "--quick", "--results", "mine"), "recipe paper", "recipe quick")
    assert QUICK.name == "quick"


def test_folder_of_another_reproduction(command, there, monkeypatch, digits_folder):
    def asked_with(seeds):
        monkeypatch.setattr(reproducing, "protocol", lambda network, **asked: small(seeds=seeds, methods=("dense",)))
        return command("reproduce", "lenet-500-300", "--data-dir", digits_folder, "--device", "cpu")

    assert asked_with([0]).code == 0
    assert refused(asked_with([0, 1]), "another configuration", "seeds ([0] there, [0, 1] here)")


def test_data_that_is_wrong_does_not_bind_the_folder(command, there, monkeypatch, make_digits, digits_folder):
    monkeypatch.setattr(reproducing, "protocol", lambda network, **asked: small(seeds=[0], methods=("dense",)))
    arguments = ("reproduce", "lenet-500-300", "--device", "cpu", "--data-dir")
    assert refused(command(*arguments, there / "nowhere"), "nowhere")
    assert refused(command(*arguments, make_digits(there / "data", size=14)), "(1, 14, 14)")
    assert not (there / "reproductions").exists()
    assert command(*arguments, digits_folder).code == 0


def test_data_of_the_environment_is_written_down(command, there, monkeypatch, digits_folder):
    monkeypatch.setattr(reproducing, "protocol", lambda network, **asked: small(seeds=[0], methods=("dense",)))
    monkeypatch.setenv("BAYESPRUNE_DATA", str(digits_folder))
    assert command("reproduce", "lenet-500-300", "--device", "cpu", "--work", "work").code == 0
    assert json.loads((there / "work" / "config.json").read_text())["data_dir"] == str(digits_folder)
    monkeypatch.delenv("BAYESPRUNE_DATA")
    (there / "results" / "lenet-500-300-mnist.jsonl").unlink()
    assert refused(command("reproduce", "lenet-500-300", "--device", "cpu", "--work", "work"), "data_dir")


def test_negative_seeds_are_seeds(command, there, few, digits_folder):
    options = ("--seeds=-1", "--methods", "dense", "--data-dir", digits_folder, "--device", "cpu")
    assert command("reproduce", "lenet-500-300", *options).code == 0
    assert read_rows(there / "results" / "lenet-500-300-mnist.jsonl")[0]["seed"] == -1


@pytest.mark.parametrize("network", ["lenet-500-300", pytest.param("lenet5-caffe", marks=pytest.mark.slow)])
def test_the_report_reads_the_rows(command, there, few, monkeypatch, digits_folder, network):
    """Also those of models that diverged."""
    build = fleets.build_seeded

    def spoilt(config, data):
        model = build(config, data)
        if config.seed == 1:
            with torch.no_grad():
                model.fc2.weight[0, 0] = float("nan")
        return model

    monkeypatch.setattr(fleets, "build_seeded", spoilt)
    made = command("reproduce", network, "--quick", "--seeds", "0,1", "--results", "mine", "--data-dir", digits_folder, "--device", "cpu")
    assert made.code == 0
    assert "4 of them diverged" in made.out
    rows = read_rows(there / "mine" / f"{network}-mnist.jsonl")
    assert [found["status"] for found in rows] == ["finished", "diverged"] * 4
    assert all("weight" in found["reason"] for found in rows[1::2])
    reported = command("report", "--results", "mine", "--out", "docs")
    assert reported.code == 0, reported.err
    assert "Traceback" not in reported.err
    assert (there / "docs" / "results.md").exists()
