"""Fixtures for the whole test suite."""

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bayesprune import cli


def write_digits(folder: Path, training: int = 600, test: int = 200, size: int = 28) -> Path:
    """An MNIST-like folder in plain IDX files: a random pattern for each class under noise, easy to learn."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    patterns = 200 * (random.random((10, size, size)) < 0.15)
    for prefix, count in (("train", training), ("t10k", test)):
        labels = random.integers(0, 10, count)
        images = (patterns[labels] + random.integers(0, 50, (count, size, size))).clip(0, 255)
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            header = struct.pack(f">2xBB{array.ndim}I", 8, array.ndim, *array.shape)
            (folder / name).write_bytes(header + array.astype(np.uint8).tobytes())
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache folder is none of the tests' business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def make_digits() -> Callable[..., Path]:
    return write_digits


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Calls the command line in this process, as the installed script does, and gives exit code and outputs."""

    def call(*arguments: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["bayesprune", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return SimpleNamespace(code=stopped.value.code, out=captured.out, err=captured.err)

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, digits_folder: Path) -> Path:
    """The folder of a short run that is complete; whoever changes it, changes a copy."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    cli.app(
        ["run", "--out", str(folder), "--data-dir", str(digits_folder), "--epochs", "1", "--seed", "3", "--device", "cpu"],
        standalone_mode=False,
    )
    return folder
