from pathlib import Path

import numpy as np
import pytest

from bayesprune.data import CIFAR10, CIFAR100, CifarLayout, load_cifar
from bayesprune.errors import DataError

LAYOUTS = pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)


def records(layout: CifarLayout, count: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    labels = [generator.integers(0, limit, (count, 1)) for limit in layout.label_limits]
    return np.hstack([*labels, generator.integers(0, 256, (count, 3072))]).astype(np.uint8)


def small_set(layout: CifarLayout, folder: Path, count: int = 4) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: records(layout, count, seed) for seed, name in enumerate(layout.files)}
    for name, content in made.items():
        (folder / name).write_bytes(content.tobytes())
    return made


@LAYOUTS
@pytest.mark.parametrize("inside", [True, False])
def test_folder_itself_or_its_parent(layout: CifarLayout, inside: bool, tmp_path: Path) -> None:
    made = small_set(layout, tmp_path / layout.folder)
    read = load_cifar(layout, tmp_path / layout.folder if inside else tmp_path)
    labels = len(layout.label_limits)
    train = np.concatenate([made[name] for name in layout.train_files])
    np.testing.assert_array_equal(read.train.images.numpy().reshape(len(train), -1), train[:, labels:])
    np.testing.assert_array_equal(read.train.labels.numpy(), train[:, labels - 1])
    np.testing.assert_array_equal(read.test.labels.numpy(), made[layout.test_files[0]][:, labels - 1])
    assert read.image_shape == (3, 32, 32)
    assert (read.name, read.num_classes, read.augment) == (layout.name, layout.label_limits[-1], True)
    assert read.train.images.is_contiguous()


def test_channels_are_planes_of_rows(tmp_path: Path) -> None:
    made = small_set(CIFAR10, tmp_path)["test_batch.bin"]
    image = load_cifar(CIFAR10, tmp_path).test.images[2]
    assert image[1, 3, 5] == made[2, 1 + 1024 + 3 * 32 + 5]


def test_published_constants() -> None:
    assert CIFAR10.mean == (0.4914, 0.4822, 0.4465)
    assert CIFAR10.std == (0.2023, 0.1994, 0.2010)
    assert CIFAR100.mean == (0.5071, 0.4867, 0.4408)
    assert CIFAR100.std == (0.2675, 0.2565, 0.2761)


def test_missing_batch_is_named(tmp_path: Path) -> None:
    small_set(CIFAR10, tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin missing"):
        load_cifar(CIFAR10, tmp_path)


@LAYOUTS
def test_nothing_there(layout: CifarLayout, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no {layout.name} here, neither {layout.folder}"):
        load_cifar(layout, tmp_path / "nowhere")


@LAYOUTS
@pytest.mark.parametrize("kept", [0, 1, 3071, 5000])
def test_truncated_file(layout: CifarLayout, kept: int, tmp_path: Path) -> None:
    small_set(layout, tmp_path)
    path = tmp_path / layout.test_files[0]
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"{path.name}: truncated .* {kept} bytes"):
        load_cifar(layout, tmp_path)


@LAYOUTS
def test_label_out_of_range(layout: CifarLayout, tmp_path: Path) -> None:
    made = small_set(layout, tmp_path)
    name = layout.train_files[0]
    for column, limit in enumerate(layout.label_limits):
        damaged = made[name].copy()
        damaged[2, column] = limit
        (tmp_path / name).write_bytes(damaged.tobytes())
        with pytest.raises(DataError, match=f"{name}: label {limit} of record 2 is out of range"):
            load_cifar(layout, tmp_path)


def test_folder_in_place_of_a_batch(tmp_path: Path) -> None:
    small_set(CIFAR10, tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    (tmp_path / "data_batch_2.bin").mkdir()
    with pytest.raises(DataError, match=r"data_batch_2\.bin: is a folder"):
        load_cifar(CIFAR10, tmp_path)
