import struct
from pathlib import Path

import pytest

from bayesprune.data import CIFAR10, CIFAR100, DATA_VARIABLE, DATASETS, CifarLayout, catalog, describe_datasets, load_dataset
from bayesprune.data.download import Archive
from bayesprune.data.mnist import FILES, TEST_LABELS
from bayesprune.errors import DataError, InputError


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put_cifar(layout: CifarLayout, folder: Path) -> Path:
    place = folder / layout.folder
    place.mkdir(parents=True, exist_ok=True)
    for name in layout.files:
        (place / name).write_bytes(bytes(2 * (len(layout.label_limits) + 3072)))
    return place


def put_mnist(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shape = (2, 5, 5) if "images" in name else (2,)
        content = bytes(50) if "images" in name else bytes(2)
        (folder / name).write_bytes(struct.pack(f">2xBB{len(shape)}I", 8, len(shape), *shape) + content)
    return folder


def where(name: str, data_dir: Path | None = None) -> str:
    return next(row.where for row in describe_datasets(data_dir) if row.name == name)


def test_mnist_comes_with_the_package() -> None:
    assert len(load_dataset("mnist").train) == 60_000
    assert where("mnist") == "inside the package"


@pytest.mark.parametrize(("name", "guess"), [("cifar-10", "cifar10"), ("MNIST", "mnist"), ("cifr100", "cifar100")])
def test_unknown_name_with_a_suggestion(name: str, guess: str) -> None:
    with pytest.raises(InputError, match=rf"{name}.*mnist, cifar10, cifar100. Did you mean '{guess}'\?"):
        load_dataset(name)


def test_unknown_name_without_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"known are mnist, cifar10, cifar100$"):
        load_dataset("imagenet")


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
def test_cifar_from_argument_variable_and_cache(layout: CifarLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=rf"not in {tmp_path}/cache/bayesprune.*{DATA_VARIABLE}.*{layout.folder}"):
        load_dataset(layout.name)
    assert where(layout.name) == f"to be downloaded into {tmp_path / 'cache' / 'bayesprune'}"
    for place in ("cache/bayesprune", "variable", "argument"):
        put_cifar(layout, tmp_path / place)
    assert load_dataset(layout.name).num_classes == layout.label_limits[-1]
    assert where(layout.name) == str(tmp_path / "cache" / "bayesprune" / layout.folder)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "variable"))
    assert where(layout.name) == str(tmp_path / "variable" / layout.folder)
    assert where(layout.name, tmp_path / "argument") == str(tmp_path / "argument" / layout.folder)
    (tmp_path / "argument" / layout.folder / layout.files[-1]).unlink()
    load_dataset(layout.name)
    with pytest.raises(DataError, match=f"{layout.files[-1]} missing"):
        load_dataset(layout.name, tmp_path / "argument")
    assert where(layout.name, tmp_path / "argument").endswith(f"without {layout.files[-1]}")


def test_relative_cache_variable_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert where("cifar10") == f"to be downloaded into {tmp_path / '.cache' / 'bayesprune'}"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put_cifar(CIFAR10, tmp_path / "sets")
    assert len(load_dataset("cifar10", Path("~/sets")).train) == 10


def test_folder_as_text(tmp_path: Path) -> None:
    put_cifar(CIFAR10, tmp_path)
    assert len(load_dataset("cifar10", str(tmp_path)).train) == len(load_dataset("cifar10", tmp_path).train) > 0
    with pytest.raises(InputError, match="not an object of type int"):
        load_dataset("cifar10", 3)  # type: ignore[arg-type]


def test_unknown_home() -> None:
    with pytest.raises(InputError, match=f"no such home folder.*{DATA_VARIABLE}"):
        load_dataset("cifar10", Path("~nobody-of-this-name/sets"))


def test_download_only_when_asked_and_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(archive: Archive, into: Path) -> None:
        fetched.append((archive.url, archive.md5, into))
        put_cifar(CIFAR100, into)

    monkeypatch.setattr(catalog, "download", fetch)
    with pytest.raises(DataError):
        load_dataset("cifar100", tmp_path)
    assert fetched == []
    for _ in range(2):
        load_dataset("cifar100", tmp_path, download=True)
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    assert fetched == [(url, "03b5dce01913d631647c71ecec9e9cb8", tmp_path)]


def test_mnist_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_mnist(tmp_path / "mine" / "mnist")
    assert load_dataset("mnist", tmp_path / "mine").image_shape == (1, 5, 5)
    assert load_dataset("mnist", tmp_path / "mine" / "mnist").image_shape == (1, 5, 5)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "mine"))
    assert load_dataset("mnist").image_shape == (1, 5, 5)
    assert where("mnist") == str(tmp_path / "mine" / "mnist")


def test_mnist_of_the_package_where_the_variable_names_a_folder_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert where("mnist") == "inside the package"


def test_mnist_must_be_in_a_folder_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train-images"):
        load_dataset("mnist", tmp_path)
    assert where("mnist", tmp_path) == f"not in {tmp_path}"


def test_incomplete_mnist_in_the_variables_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (put_mnist(tmp_path) / TEST_LABELS).unlink()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=f"no {TEST_LABELS}"):
        load_dataset("mnist")


def test_description() -> None:
    rows = describe_datasets()
    assert [row.name for row in rows] == list(DATASETS)
    assert [(row.images, row.classes) for row in rows] == [("60,000 + 10,000", 10), ("50,000 + 10,000", 10), ("50,000 + 10,000", 100)]


def test_description_of_an_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "folder cannot be read" in where("cifar10", tmp_path)


def test_folder_that_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a" * 300
    with pytest.raises(InputError, match=r"the data folder a+ cannot be looked at \(File name too long\)"):
        load_dataset("mnist", Path(name))
    monkeypatch.setenv(DATA_VARIABLE, name)
    with pytest.raises(InputError, match=f"{DATA_VARIABLE} names a+, which cannot be looked at"):
        load_dataset("cifar10")
