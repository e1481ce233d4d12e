"""What a data set is: two splits of images with labels, and how its images are to be fed to a network."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesprune.errors import DataError, InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Attributes:
        images: uint8, of shape (N, C, H, W).
        labels: int64, of shape (N,).
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(
                f"images must be uint8 of shape (N, C, H, W), not {self.images.dtype} of shape {tuple(self.images.shape)}; convert them"
            )
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise DataError(
                f"labels must be int64 of shape (N,), not {self.labels.dtype} of shape {tuple(self.labels.shape)}; convert them"
            )
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images but {len(self.labels)} labels; the two files do not belong together")
        if self.images.numel() == 0:
            raise DataError(f"no pixels in images of shape {tuple(self.images.shape)}; the set is empty")

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        """The first images, at most so many."""
        return Split(self.images[:count], self.labels[:count])

    def split_off(self, count: int) -> tuple["Split", "Split"]:
        """All but the last ``count`` images, and those: training and validation."""
        if not 0 < count < len(self):
            raise InputError(f"cannot split {count} images off {len(self)}; give a number from 1 to {len(self) - 1}")
        kept = len(self) - count
        return Split(self.images[:kept], self.labels[:kept]), Split(self.images[kept:], self.labels[kept:])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, with what a network needs to know of them.

    Attributes:
        name: what it is called in commands and reports.
        train: the training split.
        test: the test split.
        num_classes: labels are 0 to this, less one.
        mean: of each channel, on the scale where white is 1; taken off each pixel.
        std: of each channel, on the same scale; what is left is divided by it.
        augment: whether training usually crops and flips its images at random.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise DataError(
                f"{self.name}: training images are {tuple(self.train.images.shape[1:])}, test images {tuple(self.test.images.shape[1:])}; "
                "the files do not belong together"
            )
        channels = self.train.images.shape[1]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise InputError(f"{self.name}: {channels} channels need as many means and positive deviations, not {self.mean} and {self.std}")
        for part, split in (("training", self.train), ("test", self.test)):
            wrong = ((split.labels < 0) | (split.labels >= self.num_classes)).nonzero()
            if len(wrong):
                place = int(wrong[0])
                raise DataError(
                    f"{self.name}: label {int(split.labels[place])} of {part} image {place} is out of range, "
                    f"there are {self.num_classes} classes; the file is damaged or the number of classes is wrong"
                )

    def for_tuning(self, count: int) -> "Dataset":
        """The set to choose settings with: the last ``count`` training images take the place of the test images, which stay unseen."""
        train, validation = self.train.split_off(count)
        return replace(self, train=train, test=validation)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width
