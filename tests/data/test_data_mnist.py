import gzip
import hashlib
import struct
import time
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from bayesprune.data import load_mnist
from bayesprune.data.mnist import FILES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, find_mnist
from bayesprune.errors import DataError

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def images(count: int, size: int = 3) -> bytes:
    return struct.pack(">2xBB3I", 8, 3, count, size, size) + bytes(range(count * size * size))


def labels(*values: int) -> bytes:
    return struct.pack(">2xBBI", 8, 1, len(values)) + bytes(values)


def small_set(folder: Path) -> Path:
    for name, content in zip(FILES, (images(4), labels(0, 9, 2, 3), images(2), labels(1, 0)), strict=True):
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", MD5)
def test_embedded_files_are_the_original_ones(name: str) -> None:
    content = (files("bayesprune.data") / "mnist" / name).read_bytes()
    assert hashlib.md5(content, usedforsecurity=False).hexdigest() == MD5[name]


def test_attribution_lies_beside_the_files() -> None:
    text = (files("bayesprune.data") / "mnist" / "ATTRIBUTION.md").read_text()
    assert "LeCun" in text
    assert "Cortes" in text
    assert "ShareAlike 3.0" in text
    assert all(md5 in text for md5 in MD5.values())


def test_embedded_set() -> None:
    started = time.perf_counter()
    mnist = load_mnist()
    assert time.perf_counter() - started < 3
    assert mnist.train.images.shape == (60_000, 1, 28, 28)
    assert mnist.test.images.shape == (10_000, 1, 28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert mnist.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.train.images.double().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert (mnist.name, mnist.num_classes, mnist.mean, mnist.std, mnist.augment) == ("mnist", 10, (0.0,), (1.0,), False)


def test_set_in_a_folder(tmp_path: Path) -> None:
    made = load_mnist(small_set(tmp_path))
    assert made.train.labels.tolist() == [0, 9, 2, 3]
    assert made.test.labels.tolist() == [1, 0]
    assert torch.equal(made.test.images.flatten(), torch.arange(18, dtype=torch.uint8))


def test_plain_and_gzip_files_may_be_mixed(tmp_path: Path) -> None:
    plain = load_mnist(small_set(tmp_path))
    (tmp_path / TRAIN_IMAGES).unlink()
    (tmp_path / f"{TRAIN_IMAGES}.gz").write_bytes(gzip.compress(images(4)))
    assert torch.equal(load_mnist(tmp_path).train.images, plain.train.images)


def test_missing_file_is_named(tmp_path: Path) -> None:
    (small_set(tmp_path) / TEST_LABELS).unlink()
    with pytest.raises(DataError, match=f"no {TEST_LABELS} "):
        load_mnist(tmp_path)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no train-images"):
        load_mnist(tmp_path / "nowhere")


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=r"folder cannot be read \(Permission denied\)"):
        load_mnist(tmp_path)


def test_images_and_labels_of_different_length(tmp_path: Path) -> None:
    (small_set(tmp_path) / TRAIN_LABELS).write_bytes(labels(1, 2, 3))
    with pytest.raises(DataError, match=f"{TRAIN_IMAGES}, .*{TRAIN_LABELS}: 4 images but 3 labels"):
        load_mnist(tmp_path)


def test_empty_set(tmp_path: Path) -> None:
    (small_set(tmp_path) / TRAIN_LABELS).write_bytes(labels())
    (tmp_path / TRAIN_IMAGES).write_bytes(images(0))
    with pytest.raises(DataError, match="the set is empty"):
        load_mnist(tmp_path)


def test_exchanged_files(tmp_path: Path) -> None:
    (small_set(tmp_path) / TRAIN_IMAGES).write_bytes(labels(1, 2, 3, 4))
    with pytest.raises(DataError, match="are the files exchanged"):
        load_mnist(tmp_path)


def test_truncated_gzip(tmp_path: Path) -> None:
    (small_set(tmp_path) / TRAIN_IMAGES).write_bytes(gzip.compress(images(4))[:-10])
    with pytest.raises(DataError, match=f"{TRAIN_IMAGES}: the gzip file is truncated"):
        load_mnist(tmp_path)


def test_number_of_classes(tmp_path: Path) -> None:
    (small_set(tmp_path) / TRAIN_LABELS).write_bytes(labels(1, 2, 46, 3))
    with pytest.raises(DataError, match="label 46 of training image 2"):
        load_mnist(tmp_path)
    assert load_mnist(tmp_path, num_classes=47).num_classes == 47


def test_find_looks_in_the_subfolder_too(tmp_path: Path) -> None:
    assert find_mnist(tmp_path) is None
    inside = tmp_path / "mnist"
    inside.mkdir()
    small_set(inside)
    assert find_mnist(tmp_path) == find_mnist(inside) == inside
