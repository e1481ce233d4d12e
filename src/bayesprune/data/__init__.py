"""Data sets: MNIST inside the package, readers for IDX and CIFAR's binary version, and batches that live on the device."""

from bayesprune.data.augment import crop_and_flip
from bayesprune.data.batches import EpochPlan, TensorBatches, normalise, plan_epoch
from bayesprune.data.catalog import DATASETS, DatasetRow, describe_datasets, load_dataset
from bayesprune.data.cifar import CIFAR10, CIFAR100, CifarLayout, load_cifar
from bayesprune.data.dataset import Dataset, Split
from bayesprune.data.download import Archive, download
from bayesprune.data.folders import DATA_VARIABLE
from bayesprune.data.idx import read_idx
from bayesprune.data.mnist import load_mnist

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DATASETS",
    "DATA_VARIABLE",
    "Archive",
    "CifarLayout",
    "Dataset",
    "DatasetRow",
    "EpochPlan",
    "Split",
    "TensorBatches",
    "crop_and_flip",
    "describe_datasets",
    "download",
    "load_cifar",
    "load_dataset",
    "load_mnist",
    "normalise",
    "plan_epoch",
    "read_idx",
]
