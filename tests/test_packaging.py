"""The wheel and the sdist hold what they should, and work where only they were installed."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bayesprune"
MNIST = {
    f"data/mnist/{name}.gz"
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
}
NEEDED = MNIST | {
    "experiments/published.csv",
    "report/page/page.html",
    "data/mnist/ATTRIBUTION.md",
    "py.typed",
    "__init__.py",
    "cli/__init__.py",
}
SDIST_EXTRAS = {"PKG-INFO", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "pyproject.toml", ".gitignore"}

PROBE = """
import importlib.metadata, json, pathlib
import bayesprune
from bayesprune.data import load_mnist

mnist = load_mnist()
print(json.dumps({
    "file": bayesprune.__file__,
    "version": bayesprune.__version__,
    "metadata_version": importlib.metadata.version("bayesprune"),
    "typed": pathlib.Path(bayesprune.__file__).with_name("py.typed").is_file(),
    "train": list(mnist.train.images.shape),
    "test": list(mnist.test.images.shape),
}))
"""


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], cwd=folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def call(command, cwd):
    """Run a command away from the checkout, without anything that would put the checkout onto the path of Python."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


DATA_FILES = {
    "adaptive/native/gated_convolution.c",
    "adaptive/native/gated_linear.c",
    "adaptive/native/masks.h",
    "adaptive/native/rows.h",
    "adaptive/native/tiles.h",
    "experiments/published.csv",
    "report/page/page.css",
    "report/page/page.html",
    "report/page/page.js",
}


def source_files():
    return {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def interpreter(folder):
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def environment_that_borrows_dependencies(folder):
    """Make an environment of its own that sees what this one has installed, except bayesprune itself."""
    venv.create(folder, with_pip=False)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for origin in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(origin).iterdir():
            if "bayesprune" not in entry.name and not (borrowed / entry.name).exists():
                (borrowed / entry.name).symlink_to(entry)
    site_packages = call([interpreter(folder), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder).strip()
    (Path(site_packages) / "borrowed.pth").write_text(f"{borrowed}\n")


def assert_works(python, environment, cwd):
    found = json.loads(call([python, "-c", PROBE], cwd=cwd))
    assert Path(found["file"]).resolve().is_relative_to(environment.resolve())
    assert not Path(found["file"]).resolve().is_relative_to(ROOT)
    assert found["version"] == found["metadata_version"]
    assert found["typed"]
    assert found["train"] == [60_000, 1, 28, 28]
    assert found["test"] == [10_000, 1, 28, 28]
    assert found["version"] in call([python.with_name("bayesprune"), "--version"], cwd=cwd)


def test_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built.wheel) as archive:
        names = {PurePosixPath(name) for name in archive.namelist()}
    package = {path.relative_to("bayesprune").as_posix() for path in names if path.parts[0] == "bayesprune"}
    others = {path for path in names if path.parts[0] != "bayesprune"}
    assert package >= NEEDED
    assert package == source_files()
    assert all(path.parts[0].endswith(".dist-info") for path in others)
    assert {"LICENSE", "NOTICE"} <= {path.name for path in others}


def test_sdist_holds_the_package_and_what_builds_it(built):
    with tarfile.open(built.sdist) as archive:
        names = {PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in archive.getmembers() if member.isfile()}
    package = {path.relative_to("src/bayesprune").as_posix() for path in names if path.parts[0] == "src"}
    assert package >= NEEDED
    assert package == source_files()
    assert {path.as_posix() for path in names if path.parts[0] != "src"} == SDIST_EXTRAS


def test_package_folder_holds_no_stray_files():
    kinds = {".py", ".typed", ".gz", ".md"}
    assert {name for name in source_files() if PurePosixPath(name).suffix not in kinds} == DATA_FILES
    assert {name for name in source_files() if name.endswith(".gz")} == MNIST


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installs_beside_its_dependencies(built, kind, tmp_path):
    environment = tmp_path / "environment"
    environment_that_borrows_dependencies(environment)
    python = interpreter(environment)
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    call([sys.executable, "-m", "pip", "--python", python, "install", *options, getattr(built, kind)], cwd=tmp_path)
    assert_works(python, environment, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installs_into_an_empty_environment(built, kind, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = interpreter(environment)
    call([python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", getattr(built, kind)], cwd=tmp_path)
    call([python, "-m", "pip", "check"], cwd=tmp_path)
    assert_works(python, environment, cwd=tmp_path)
