"""CIFAR-10 and CIFAR-100 in the layout of the official *binary version*.

A file is a row of records: one label byte (CIFAR-10), or a coarse and a fine one (CIFAR-100, of which the fine one is used), then 3,072
bytes of pixels: 32 x 32 red, green, blue.

References:
    A. Krizhevsky. Learning multiple layers of features from tiny images. 2009. https://www.cs.toronto.edu/~kriz/cifar.html
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bayesprune.data.dataset import Dataset, Split
from bayesprune.data.reading import names_in, read_file
from bayesprune.errors import DataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """Which files make up a set, and what their bytes mean.

    Attributes:
        name: of the set.
        folder: what the official archive calls its folder.
        train_files: in the order in which their images are numbered.
        test_files: likewise.
        label_limits: for each label byte of a record, the number of its classes; the last one is the label.
        mean: of each channel.
        std: of each channel.
    """

    name: str
    folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_limits: tuple[int, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the set."""
        return self.train_files + self.test_files


CIFAR10 = CifarLayout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_files=("test_batch.bin",),
    label_limits=(10,),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
CIFAR100 = CifarLayout(
    name="cifar100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_files=("test.bin",),
    label_limits=(20, 100),
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


def load_cifar(layout: CifarLayout, folder: Path) -> Dataset:
    """A CIFAR set from the folder of its files, or from the folder that this one lies in.

    Raises:
        DataError: a file is missing, truncated, or has a label that does not exist.
    """
    place = find_cifar(layout, folder)
    if place is None:
        raise DataError(
            f"{folder}: no {layout.name} here, neither {layout.folder} nor {layout.files[0]}; download it or name another folder"
        )
    missing = missing_files(layout, place)
    if missing:
        raise DataError(f"{place}: {', '.join(missing)} missing from {layout.name}; unpack the official binary archive again")
    return Dataset(
        name=layout.name,
        train=_split(layout, [place / name for name in layout.train_files]),
        test=_split(layout, [place / name for name in layout.test_files]),
        num_classes=layout.label_limits[-1],
        mean=layout.mean,
        std=layout.std,
        augment=True,
    )


def find_cifar(layout: CifarLayout, folder: Path) -> Path | None:
    """The folder that holds files of the set: the one with the official name in ``folder``, else ``folder`` itself."""
    for place in (folder / layout.folder, folder):
        if names_in(place).intersection(layout.files):
            return place
    return None


def missing_files(layout: CifarLayout, place: Path) -> list[str]:
    """The files of the set that are not in the folder."""
    present = names_in(place)
    return [name for name in layout.files if name not in present]


def _split(layout: CifarLayout, paths: list[Path]) -> Split:
    parts = [_records(layout, path) for path in paths]
    labels = len(layout.label_limits)
    images = np.concatenate([part[:, labels:] for part in parts]).reshape(-1, 3, 32, 32)
    classes = np.concatenate([part[:, labels - 1] for part in parts])
    return Split(torch.from_numpy(images), torch.from_numpy(classes).long())


def _records(layout: CifarLayout, path: Path) -> NDArray[np.uint8]:
    content = read_file(path)
    size = len(layout.label_limits) + PIXELS
    if not content or len(content) % size:
        raise DataError(
            f"{path}: truncated or not a {layout.name} file: {len(content)} bytes are not a whole number of {size}-byte records; "
            "unpack the official binary archive again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    for column, limit in enumerate(layout.label_limits):
        wrong = np.flatnonzero(records[:, column] >= limit)
        if wrong.size:
            raise DataError(
                f"{path}: label {records[wrong[0], column]} of record {wrong[0]} is out of range, which is 0 to {limit - 1}; "
                "the file is damaged or of another set"
            )
    return records
