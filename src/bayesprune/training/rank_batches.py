"""Batches that several processes share."""

from collections.abc import Iterator, Sequence

import torch

from bayesprune.data import TensorBatches
from bayesprune.errors import InputError
from bayesprune.noise import Share
from bayesprune.training.distributed import Ranks
from bayesprune.training.sources import Batch, BatchSource


class RankBatches:
    """The samples of this process in the batches that one process would train on, in the same order.

    Of ``TensorBatches`` only those samples are made ready. Any other source, a user's ``DataLoader``, is read as a whole by every process,
    which then takes its part: simple and right, if wasteful where reading is slow.

    Args:
        source: of the batches of all; the same in every process.
        ranks: who shares them.
    """

    def __init__(self, source: BatchSource, ranks: Ranks) -> None:
        self.source, self.ranks = source, ranks
        self.share: Share = ranks.share(1)
        """Where the batch that was given out last lies in that of all."""

    @property
    def n_data(self) -> int:
        return self.source.n_data

    def __len__(self) -> int:
        return len(self.source)

    def epoch(self, seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        if len(seeds) != 1:
            raise InputError("several processes train one model, not models side by side: start without torchrun")
        if isinstance(self.source, TensorBatches):
            plan = self.source.plan(seeds, epoch).to(self.source.device)
            for positions in torch.split(torch.arange(self.n_data, device=self.source.device), self.source.batch_size):
                yield self.source.planned(plan, positions[self._next(len(positions))])
        else:
            for inputs, targets in self.source.epoch(seeds, epoch):
                part = self._next(inputs.shape[1])
                yield inputs[:, part], targets[:, part]

    def in_order(self) -> Iterator[Batch]:
        """All batches, as they are: whoever evaluates decides which of them are this process's."""
        return self.source.in_order()

    def _next(self, total: int) -> slice:
        self.share = self.ranks.share(total)
        return slice(self.share.start, self.share.stop)


def shared(source: BatchSource, ranks: Ranks) -> BatchSource:
    """A source as these processes share it; as it is, where there is one."""
    return source if ranks.alone else RankBatches(source, ranks)
