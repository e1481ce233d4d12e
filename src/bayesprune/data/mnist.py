"""MNIST, which comes with the package, and sets in the same four files (Fashion-MNIST, KMNIST).

References:
    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proceedings of the IEEE, 1998.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesprune.data.dataset import Dataset, Split
from bayesprune.data.idx import read_idx
from bayesprune.data.reading import names_in
from bayesprune.errors import DataError

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def load_mnist(folder: Path | None = None, num_classes: int = 10) -> Dataset:
    """MNIST or a set like it, pixels scaled to [0, 1] and nothing else.

    Args:
        folder: where the four files are, plain or gzip; the set inside the package where none is given.
        num_classes: how many the labels tell apart.

    Raises:
        DataError: a file is missing, damaged, or does not fit the others.
    """
    where = _embedded() if folder is None else _on_disk(folder)
    return Dataset(
        name="mnist",
        train=_split(where[TRAIN_IMAGES], where[TRAIN_LABELS]),
        test=_split(where[TEST_IMAGES], where[TEST_LABELS]),
        num_classes=num_classes,
        mean=(0.0,),
        std=(1.0,),
        augment=False,
    )


def find_mnist(folder: Path) -> Path | None:
    """The folder itself or its ``mnist`` subfolder, whichever holds at least one of the four files."""
    for place in (folder, folder / "mnist"):
        present = names_in(place)
        if any(name in present or f"{name}.gz" in present for name in FILES):
            return place
    return None


def _embedded() -> dict[str, Traversable]:
    folder = files("bayesprune.data") / "mnist"
    return {name: folder / f"{name}.gz" for name in FILES}


def _on_disk(folder: Path) -> dict[str, Traversable]:
    present = names_in(folder)
    found: dict[str, Traversable] = {}
    for name in FILES:
        if name in present:
            found[name] = folder / name
        elif f"{name}.gz" in present:
            found[name] = folder / f"{name}.gz"
    missing = [name for name in FILES if name not in found]
    if missing:
        raise DataError(
            f"{folder}: no {', '.join(missing)} (plain or .gz) in this folder; put it there, or name no folder for the MNIST of the package"
        )
    return found


def _split(images: Traversable, labels: Traversable) -> Split:
    pixels, classes = _bytes(images, 3).unsqueeze(1), _bytes(labels, 1).long()
    try:
        return Split(pixels, classes)
    except DataError as error:
        raise DataError(f"{images}, {labels}: {error}") from error


def _bytes(path: Traversable, dimensions: int) -> Tensor:
    array = read_idx(path)
    if array.dtype != np.uint8 or array.ndim != dimensions:
        what = "images" if dimensions == 3 else "labels"
        raise DataError(
            f"{path}: holds {array.dtype} of shape {array.shape}, but {what} are uint8 in {dimensions} dimensions; are the files exchanged?"
        )
    return torch.from_numpy(array)
