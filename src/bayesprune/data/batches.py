"""Batches of a split that lies on the device as a whole: no worker processes, one copy at the start.

What an epoch feeds depends on its seed and number alone: order, crops and flips are drawn on the CPU and moved over once an epoch, so that
they are the same on any device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.data.augment import PADDING, crop_and_flip
from bayesprune.data.dataset import Split
from bayesprune.errors import InputError
from bayesprune.noise import derive_seed

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """What an epoch feeds, position by position.

    Attributes:
        order: which image, of shape (E, N) for E models that are trained side by side.
        offsets: where its crop begins, of shape (E, N, 2).
        flips: whether it is mirrored, of shape (E, N).
    """

    order: Tensor
    offsets: Tensor
    flips: Tensor

    def to(self, device: torch.device | str) -> "EpochPlan":
        """The same on a device."""
        return EpochPlan(self.order.to(device), self.offsets.to(device), self.flips.to(device))

    def copy_(self, other: "EpochPlan") -> None:
        """Become another epoch's plan, in place."""
        for mine, new in ((self.order, other.order), (self.offsets, other.offsets), (self.flips, other.flips)):
            mine.copy_(new, non_blocking=True)


def plan_epoch(n_data: int, seeds: Sequence[int], epoch: int, augment: bool = True) -> EpochPlan:
    """The plan of one epoch, on the processor: for each seed a function of the number of images, the seed and the epoch."""
    plans = [_plan_one(n_data, seed, epoch, augment) for seed in seeds]
    order, offsets, flips = (torch.stack(parts) for parts in zip(*plans, strict=True))
    return EpochPlan(order, offsets, flips)


def _plan_one(n_data: int, seed: int, epoch: int, augment: bool) -> tuple[Tensor, Tensor, Tensor]:
    # Hashed because torch's CPU generator looks at 32 bits of its seed only: seed + epoch would give neighbours the same epochs.
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(n_data, generator=generator)
    if not augment:
        return order, torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
    offsets = torch.randint(0, 2 * PADDING + 1, (n_data, 2), generator=generator)
    return order, offsets, torch.rand(n_data, generator=generator) < 0.5


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(pixel / 255 - mean) / std, of uint8 images of shape (N, C, H, W); mean and std have shape (C,), and the dtype of the result."""
    return images.to(mean.dtype).div_(255).sub_(mean[:, None, None]).div_(std[:, None, None])


class TensorBatches:
    """A split on a device, given out in batches of normalised images and their labels.

    Args:
        split: the images and labels.
        mean: of each channel, as the data set has it.
        std: of each channel, likewise.
        batch_size: of the training batches; the last one of an epoch may be smaller.
        device: where everything lies.
        dtype: of the images that come out.
        augment: crop and flip the images of ``epoch`` at random; ``in_order`` never does.
    """

    def __init__(
        self,
        split: Split,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: bool = False,
    ) -> None:
        _check_batch_size(batch_size)
        self.batch_size = batch_size
        self.augment = augment
        self.device = torch.device(device)
        self.mean = torch.tensor(mean, dtype=dtype, device=self.device)
        self.std = torch.tensor(std, dtype=dtype, device=self.device)
        self.labels = split.labels.to(self.device)
        images = split.images.to(self.device)
        # Crops need raw pixels, where the border is zero; without crops the pixels are normalised once instead of once an epoch.
        self._stored = images if augment else normalise(images, self.mean, self.std)

    @property
    def n_data(self) -> int:
        """How many images an epoch goes through."""
        return len(self.labels)

    def __len__(self) -> int:
        """How many batches an epoch has, a smaller last one included."""
        return -(-self.n_data // self.batch_size)

    def plan(self, seeds: Sequence[int], epoch: int) -> EpochPlan:
        """What this epoch feeds to the models of these seeds, still on the processor."""
        return plan_epoch(self.n_data, seeds, epoch, self.augment)

    def planned(self, plan: EpochPlan, positions: Tensor) -> Batch:
        """The images and labels at these positions of a plan on the device, with a leading dimension for the models."""
        chosen = plan.order.index_select(1, positions)
        images = self._stored.index_select(0, chosen.flatten())
        if self.augment:
            offsets, flips = plan.offsets.index_select(1, positions), plan.flips.index_select(1, positions)
            images = self._ready(crop_and_flip(images, offsets.flatten(0, 1), flips.flatten()))
        return images.view(*chosen.shape, *images.shape[1:]), self.labels.index_select(0, chosen.flatten()).view(chosen.shape)

    def epoch(self, seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """All images once for each seed, shuffled (and augmented) as the seed and the number of the epoch say, side by side."""
        plan = self.plan(seeds, epoch).to(self.device)
        for positions in torch.split(torch.arange(self.n_data, device=self.device), self.batch_size):
            yield self.planned(plan, positions)

    def in_order(self, batch_size: int = 1000) -> Iterator[Batch]:
        """All images once, as they are, in their own order: for evaluation."""
        _check_batch_size(batch_size)
        for start in range(0, self.n_data, batch_size):
            yield self._ready(self._stored[start : start + batch_size]), self.labels[start : start + batch_size]

    def _ready(self, images: Tensor) -> Tensor:
        return normalise(images, self.mean, self.std) if self.augment else images


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise InputError(f"a batch has at least one image, not {batch_size}; give a positive batch size")
