"""`bayesprune bench` and `bayesprune export`."""

import json
import shutil

import pytest
from refusals import refused
from torch import nn

import bayesprune


@pytest.mark.parametrize("what", [".", "compacted.safetensors"])
def test_bench(command, finished, tmp_path, what):
    rows = tmp_path / "rows.jsonl"
    result = command("bench", finished / what, "--batch-sizes", "1,3", "--seconds", "0", "--inputs", 0, "--rows", rows)
    assert result.code == 0
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {row["batch_size"] for row in written} == {1, 3}
    assert {row["model"] for row in written} == ({"dense", "compacted"} if what == "." else {"compacted"})
    assert "median ms" in result.out
    assert ("against" in result.out) is (what == ".")


def test_bench_of_a_dependent_run_is_also_input_by_input(command, finished, tmp_path):
    rows, figure = tmp_path / "rows.jsonl", tmp_path / "figure.png"
    result = command("bench", finished, "--batch-sizes", "1", "--seconds", "0", "--inputs", 20, "--rows", rows, "--figure", figure)
    assert result.code == 0
    assert "20 inputs one by one" in result.out
    found = {row["model"]: row for row in map(json.loads, rows.read_text().splitlines()) if row.get("benchmark") == "per_input"}
    assert list(found) == ["compacted", "compacted, light", "adaptive", "gated", "dense"]
    assert found["compacted"]["error"] == found["adaptive"]["error"] == found["gated"]["error"]
    assert found["adaptive"]["macs_mean"] <= found["compacted"]["macs_mean"] <= found["dense"]["macs_mean"]
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in found.values())
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert refused(command("bench", finished, "--seconds", "0", "--figure", tmp_path / "no" / "figure.png"), "there is no folder")
    assert refused(command("bench", finished / "compacted.safetensors", "--inputs", 5), "folder of a run of DBB")
    without = command("bench", finished, "--batch-sizes", "1", "--seconds", "0", "--inputs", 0)
    assert (without.code, "one by one" in without.out) == (0, False)


def test_bench_of_a_dependent_run_whose_data_are_gone(command, finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data_dir": str(tmp_path / "nowhere")}))
    result = command("bench", run, "--batch-sizes", "1", "--seconds", "0")
    assert (result.code, "median ms" in result.out, "not measured input by input" in result.err) == (0, True, True)
    assert refused(command("bench", run, "--batch-sizes", "1", "--seconds", "0", "--inputs", 5), "nowhere")


def test_bench_input_by_input_needs_the_stages(command, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "dependent.safetensors").unlink()
    assert refused(command("bench", tmp_path / "run", "--seconds", "0"), "has no checkpoints/dependent.safetensors", "--resume")


def test_export(command, finished, tmp_path):
    result = command("export", finished / "compacted.safetensors", "--out", tmp_path / "small.onnx")
    assert result.code == 0
    assert (tmp_path / "small.onnx").stat().st_size > 1000
    assert f"written to {tmp_path / 'small.onnx'}" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "nowhere.safetensors"), "cannot read"),
        (("bench", "{run}", "--batch-sizes", "one"), "--batch-sizes takes whole numbers"),
        (("bench", "{run}", "--batch-sizes", "0"), "batch_sizes"),
        (("bench", "{run}", "--inputs", "-1"), "--inputs"),
        (("bench", "{run}", "--runtimes", "tensorrt"), "no runtime is called 'tensorrt'"),
        (("bench", "{run}", "--rows", "{empty}"), "cannot be appended to"),
        (("bench", "{run}", "--rows", "{empty}/no/such/rows.jsonl"), "cannot be appended to"),
        (("bench", "{empty}"), "is not a run's folder"),
        (("export", "{run}", "--out", "{empty}/no/such/folder.onnx"), "no such"),
        (("export", "{run}/summary.json"), "was not written by bayesprune.save"),
    ],
)
def test_bad_paths_and_options_of_bench_and_export(command, finished, tmp_path, arguments, message):
    result = command(*(argument.format(run=finished, empty=tmp_path) for argument in arguments))
    assert result.code == 2
    assert message.lower() in result.err.lower()
    assert "Traceback" not in result.err


@pytest.mark.parametrize("action", ["bench", "export"])
def test_model_with_gates_has_to_be_compacted_first(command, tmp_path, action):
    path = tmp_path / "gated.safetensors"
    bayesprune.save(bayesprune.sparsify(nn.Sequential(nn.Linear(4, 3)), "bb"), path)
    assert refused(command(action, path), "model with gates: compact it first", f"compact(load('{path}', into=model)", "save(")


def test_run_that_was_stopped_before_its_end_has_nothing_to_bench(command, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "compacted.safetensors").unlink()
    result = command("bench", tmp_path / "run")
    assert (result.code, "finish the run first with bayesprune run --resume" in result.err) == (2, True)
    assert command("run", "--resume", tmp_path / "run").code == 0
    assert command("bench", tmp_path / "run", "--seconds", "0").code == 0
