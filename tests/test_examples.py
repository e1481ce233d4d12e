import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments, folder):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def trained(folder):
    return run("own_model.py", "60", folder=folder)


def test_own_model(trained, folder):
    assert "7.input_gate" in trained
    assert "largest difference" in trained
    assert "test error" in trained
    assert (folder / "small.safetensors").is_file()


@pytest.mark.usefixtures("trained")
def test_deployment(folder):
    printed = run("deploy_with_onnxruntime.py", folder=folder)
    assert "256 images" in printed
    assert float(printed.split("difference to torch ")[1].split()[0]) < 1e-4
    assert (folder / "small.onnx").is_file()


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"own_model.py", "deploy_with_onnxruntime.py"}
