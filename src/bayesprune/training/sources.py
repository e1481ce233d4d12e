"""Where batches come from: the trainer's view of data."""

from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from bayesprune.errors import InputError, is_number
from bayesprune.noise import derive_seed
from bayesprune.training.labels import LabelRule

Batch = tuple[Tensor, Tensor]


class BatchSource(Protocol):
    """Batches of inputs and targets. ``TensorBatches`` is one; ``LoaderBatches`` makes one of a ``DataLoader``."""

    @property
    def n_data(self) -> int:
        """How many samples there are."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def epoch(self, seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """The batches of a training epoch, one for each seed side by side in a leading dimension."""

    def in_order(self) -> Iterator[Batch]:
        """All batches once, for evaluation."""


class LoaderBatches:
    """A user's ``DataLoader`` as a source of batches, moved to the device one by one.

    The loader shuffles with torch's global generator, which the trainer seeds for each epoch, or with one of its own, which is seeded
    here. The random numbers of other libraries in a data set's own code are not under our control.
    """

    def __init__(self, loader: "DataLoader[Any]", device: torch.device | str, n_data: int | None = None, *, name: str = "loader") -> None:
        self.loader = loader
        self.device = torch.device(device)
        self._labels: LabelRule | None = None
        if not hasattr(loader, "sampler"):
            raise InputError(
                f"a {name} is a torch.utils.data.DataLoader of pairs (inputs, targets), not {type(loader).__name__}: "
                "DataLoader(TensorDataset(inputs, targets), batch_size=100, shuffle=True) makes one of two tensors"
            )
        if n_data is not None and not (is_number(n_data) and n_data >= 1):
            raise InputError(f"n_data is the number of training samples, at least 1, not {n_data!r}")
        try:
            self._length = len(loader)
            self._n_data = _count(loader) if n_data is None else n_data
        except (TypeError, AttributeError) as error:
            advice = "use a data set with __len__" + (", and give n_data if need be" if name == "loader" else "")
            raise InputError(f"the {name} does not know its length: {advice}") from error
        if self._length < 1 or self._n_data < 1:
            raise InputError(f"the {name} is empty: it gives no batch")

    @property
    def n_data(self) -> int:
        return self._n_data

    def __len__(self) -> int:
        return self._length

    @property
    def smallest_batch(self) -> int | None:
        """How many samples the smallest batch of an epoch has; None where that is up to the user's own code."""
        batches = self.loader.batch_sampler
        if isinstance(batches, (list, tuple)):
            return min(map(len, batches))
        if type(batches) is not BatchSampler or not isinstance(batches.sampler, Sized):
            return None
        return batches.batch_size if batches.drop_last else len(batches.sampler) % batches.batch_size or batches.batch_size

    def expect(self, labels: LabelRule) -> None:
        """See that the labels of every batch keep a rule: now, as far as they are at hand, and while they are read."""
        self._labels = labels
        for known in _labels_at_hand(self.loader):
            labels.check(known)
        labels.check(first_batch(self)[1])

    def epoch(self, seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        if len(seeds) != 1:
            raise InputError("a DataLoader feeds one model: give models that are trained side by side their data as TensorBatches")
        batches = self.loader.batch_sampler
        for owner in (self.loader, self.loader.sampler, batches, getattr(batches, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(derive_seed(seeds[0], "loader", epoch))
        given = 0
        for given, batch in enumerate(self.in_order(), start=1):
            if given > self._length:
                break
            yield batch[0].unsqueeze(0), batch[1].unsqueeze(0)
        if given != self._length:
            raise InputError(f"the loader says that it has {self._length} batches, but gave {'more' if given > self._length else given}")

    def in_order(self) -> Iterator[Batch]:
        for batch in self.loader:
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
                raise InputError("a loader must give pairs (inputs, targets) of tensors")
            inputs, targets = batch
            if self._labels is not None and targets.device.type == "cpu":  # A GPU would have to wait.
                self._labels.check(targets)
            yield inputs.to(self.device), targets.to(self.device)


def drawing_sampler(loader: "DataLoader[Any]") -> Any:
    """What says which samples come: inside of a ``BatchSampler``, beside which a loader has one that does nothing.

    A batch sampler of another class may draw groups of samples, or whatever it likes: it is not looked into.
    """
    return loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.sampler


def first_batch(source: BatchSource) -> Batch:
    """The first batch for evaluation; the user's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        return next(iter(source.in_order()))


def first_inputs(source: BatchSource) -> Tensor:
    """Two inputs of the first batch, or the only one there is."""
    return first_batch(source)[0][:2]


def _labels_at_hand(loader: "DataLoader[Any]") -> list[Tensor]:
    """All labels, where they lie in memory as they will come; nothing where only reading the data would tell."""
    data = loader.dataset
    if not isinstance(data, TensorDataset) or len(data.tensors) != 2:
        return []
    as_they_are = type(data) is TensorDataset and loader.collate_fn is default_collate
    sampler = drawing_sampler(loader)
    in_turn = type(sampler) in (RandomSampler, SequentialSampler) and type(loader.batch_sampler) is BatchSampler
    all_of_them = in_turn and getattr(sampler, "data_source", None) is data
    return [data.tensors[1]] if as_they_are and all_of_them else []


def _count(loader: "DataLoader[Any]") -> int:
    """How many samples the whole training set has: those that the sampler goes through, on all ranks of a distributed run.

    A stream has a sampler without a number, and may know it itself.
    """
    sampler = drawing_sampler(loader)
    known = isinstance(sampler, Sized) and not isinstance(sampler, DistributedSampler)
    return len(sampler if known else loader.dataset)  # type: ignore[arg-type]
