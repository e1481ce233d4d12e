"""The data sets that are known by name, where they are, and how to get them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bayesprune.data.cifar import CIFAR10, CIFAR100, CifarLayout, find_cifar, load_cifar, missing_files
from bayesprune.data.dataset import Dataset
from bayesprune.data.download import Archive, download
from bayesprune.data.folders import DATA_VARIABLE, cache_folder, named_folder
from bayesprune.data.mnist import find_mnist, load_mnist
from bayesprune.errors import DataError, InputError, did_you_mean


@dataclass(frozen=True)
class Entry:
    """A known data set.

    Attributes:
        images: how many there are for training and for test.
        classes: how many there are.
        load: reads it, given the user's folder (or none).
        where: in words, where it would be read from, given the same.
        fetch: downloads it where it is not there, given the same; none for a set that is always there.
    """

    images: tuple[int, int]
    classes: int
    load: Callable[[str | Path | None], Dataset]
    where: Callable[[str | Path | None], str]
    fetch: Callable[[str | Path | None], None] | None = None


class DatasetRow(NamedTuple):
    """One line of the list of data sets."""

    name: str
    images: str
    classes: int
    where: str


CIFAR_ARCHIVES = {
    layout.name: Archive(f"https://www.cs.toronto.edu/~kriz/{file_name}", md5, layout.folder, layout.files)
    for layout, file_name, md5 in (
        (CIFAR10, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        (CIFAR100, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    )
}


def load_dataset(name: str, data_dir: str | Path | None = None, download: bool = False) -> Dataset:
    """A data set by its name.

    Args:
        name: ``mnist``, ``cifar10`` or ``cifar100``.
        data_dir: the folder that has it. Without one, the folder in the environment variable ``BAYESPRUNE_DATA``; without that, MNIST comes
            from the package and CIFAR from the user's cache folder. MNIST comes from the package too where the variable's folder has none.
        download: fetch the official archive into that folder where the set is not there (CIFAR).

    Raises:
        InputError: there is no set of this name.
        DataError: the set is missing, damaged or inconsistent.
        StorageError: a download cannot be stored.
    """
    entry = known_dataset(name)
    if download and entry.fetch is not None:
        entry.fetch(data_dir)
    return entry.load(data_dir)


def known_dataset(name: str) -> Entry:
    """The entry of a data set, or an error that says which there are."""
    if name not in DATASETS:
        hint = did_you_mean(str(name).lower().replace("-", ""), DATASETS)
        raise InputError(f"no data set is called {name!r}; known are {', '.join(DATASETS)}{'.' if hint else ''}{hint}")
    return DATASETS[name]


def describe_datasets(data_dir: str | Path | None = None) -> list[DatasetRow]:
    """What there is and where it is, one row a data set."""
    rows = []
    for name, entry in DATASETS.items():
        try:
            where = entry.where(data_dir)
        except DataError as error:
            where = str(error)
        rows.append(DatasetRow(name, f"{entry.images[0]:,} + {entry.images[1]:,}", entry.classes, where))
    return rows


def _mnist_folder(data_dir: str | Path | None) -> Path | None:
    folder = named_folder(data_dir)
    if folder is None:
        return None
    found = find_mnist(folder)
    # A folder given for this very set must have it; the variable names one for all sets, of which MNIST may well not be one.
    return folder if found is None and data_dir is not None else found


def _load_mnist(data_dir: str | Path | None) -> Dataset:
    return load_mnist(_mnist_folder(data_dir))


def _where_mnist(data_dir: str | Path | None) -> str:
    folder = _mnist_folder(data_dir)
    if folder is None:
        return "inside the package"
    return str(folder) if find_mnist(folder) else f"not in {folder}"


def _cifar_folder(data_dir: str | Path | None) -> Path:
    return named_folder(data_dir) or cache_folder()


def _load_cifar(layout: CifarLayout, data_dir: str | Path | None) -> Dataset:
    folder = _cifar_folder(data_dir)
    if find_cifar(layout, folder) is None:
        raise DataError(
            f"{layout.name} is not in {folder}; run `bayesprune data --download {layout.name}`, or give --data-dir or set {DATA_VARIABLE} "
            f"to the folder that has {layout.folder} from {CIFAR_ARCHIVES[layout.name].url}"
        )
    return load_cifar(layout, folder)


def _fetch_cifar(layout: CifarLayout, data_dir: str | Path | None) -> None:
    folder = _cifar_folder(data_dir)
    place = find_cifar(layout, folder)
    if place is None or missing_files(layout, place):
        download(CIFAR_ARCHIVES[layout.name], folder)


def _where_cifar(layout: CifarLayout, data_dir: str | Path | None) -> str:
    folder = _cifar_folder(data_dir)
    place = find_cifar(layout, folder)
    if place is None:
        return f"to be downloaded into {folder}"
    missing = missing_files(layout, place)
    return f"{place}, without {', '.join(missing)}" if missing else str(place)


DATASETS: dict[str, Entry] = {
    "mnist": Entry((60_000, 10_000), 10, _load_mnist, _where_mnist),
    "cifar10": Entry((50_000, 10_000), 10, partial(_load_cifar, CIFAR10), partial(_where_cifar, CIFAR10), partial(_fetch_cifar, CIFAR10)),
    "cifar100": Entry(
        (50_000, 10_000), 100, partial(_load_cifar, CIFAR100), partial(_where_cifar, CIFAR100), partial(_fetch_cifar, CIFAR100)
    ),
}
