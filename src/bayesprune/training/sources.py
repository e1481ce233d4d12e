"""Where batches come from: the trainer's view of data."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from bayesprune.errors import InputError
from bayesprune.noise import derive_seed

Batch = tuple[Tensor, Tensor]


class BatchSource(Protocol):
    """Batches of inputs and targets. ``TensorBatches`` is one; ``LoaderBatches`` makes one of a ``DataLoader``."""

    @property
    def n_data(self) -> int:
        """How many samples there are."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def epoch(self, seed: int, epoch: int) -> Iterator[Batch]:
        """The batches of a training epoch."""

    def in_order(self) -> Iterator[Batch]:
        """All batches once, for evaluation."""


class LoaderBatches:
    """A user's ``DataLoader`` as a source of batches, moved to the device one by one.

    The loader shuffles with torch's global generator, which the trainer seeds for each epoch, or with one of its own, which is seeded
    here. The random numbers of other libraries in a data set's own code are not under our control.
    """

    def __init__(self, loader: "DataLoader[Any]", device: torch.device | str, n_data: int | None = None) -> None:
        self.loader = loader
        self.device = torch.device(device)
        try:
            self._length = len(loader)
            self._n_data = _count(loader) if n_data is None else n_data
        except (TypeError, AttributeError) as error:
            raise InputError("the loader does not know its length: use a data set with __len__, and give n_data if need be") from error
        if self._length < 1 or self._n_data < 1:
            raise InputError("the loader is empty: there is nothing to train on")

    @property
    def n_data(self) -> int:
        return self._n_data

    def __len__(self) -> int:
        return self._length

    def epoch(self, seed: int, epoch: int) -> Iterator[Batch]:
        for owner in (self.loader, self.loader.sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generator.manual_seed(derive_seed(seed, "loader", epoch))
        given = 0
        for given, batch in enumerate(self.in_order(), start=1):
            if given > self._length:
                break
            yield batch
        if given != self._length:
            raise InputError(f"the loader says that it has {self._length} batches, but gave {'more' if given > self._length else given}")

    def in_order(self) -> Iterator[Batch]:
        for batch in self.loader:
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
                raise InputError("a loader must give pairs (inputs, targets) of tensors")
            inputs, targets = batch
            yield inputs.to(self.device), targets.to(self.device)


def first_inputs(source: BatchSource) -> Tensor:
    """Two inputs of the first batch, or the only one there is; the user's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        inputs, _ = next(iter(source.in_order()))
    return inputs[:2]


def _count(loader: "DataLoader[Any]") -> int:
    """How many samples the whole training set has: those that the sampler goes through, on all ranks of a distributed run."""
    sampler = loader.sampler
    return len(loader.dataset if isinstance(sampler, DistributedSampler) else sampler)  # type: ignore[arg-type]
