"""Who trains the shards of a sweep: this process, or others."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from bayesprune.experiments.shard import KnownData, Shard, ShardWatcher, known_data, run_shard, take_over
from bayesprune.experiments.watching import SweepWatcher

Outcome = tuple[Shard, list[dict[str, Any]] | None]
"""A shard with a row for each of its models, or with None where the device has not enough memory for all of them."""


class Crew(Protocol):
    """Trains shards. What becomes of them is the business of whoever handed them in."""

    def submit(self, shard: Shard) -> None:
        """Have a shard trained, now or later."""

    def wait(self) -> Outcome:
        """The next shard that comes to its end, when there is one; only as long as there are shards to wait for.

        Raises:
            BayespruneError: a shard cannot be trained.
        """


class Engine(Protocol):
    """Provides for those who train."""

    def started(self, checkpoints: Path, watcher: SweepWatcher) -> AbstractContextManager[Crew]:
        """A crew, which is dismissed in the end, whatever it is at then.

        Args:
            checkpoints: the folder for those of shards in progress.
            watcher: is told of their progress.
        """


class LocalEngine:
    """One shard after another in this process."""

    @contextmanager
    def started(self, checkpoints: Path, watcher: SweepWatcher) -> Iterator[Crew]:
        """A crew of one."""
        yield _InTurn(checkpoints, watcher)


class _InTurn:
    def __init__(self, checkpoints: Path, watcher: SweepWatcher) -> None:
        self.checkpoints, self.watcher = checkpoints, watcher
        self.queue: deque[Shard] = deque()
        self.known: KnownData = {}

    def submit(self, shard: Shard) -> None:
        self.queue.append(shard)

    def wait(self) -> Outcome:
        shard = self.queue.popleft()
        watcher = ShardWatcher(lambda progress, _: self.watcher.shard_progressed(shard, progress))
        try:
            data = known_data(shard.members[0], self.known)
            return shard, run_shard(shard, take_over(self.checkpoints, shard), data, watcher)
        except torch.cuda.OutOfMemoryError:
            pass  # What holds the memory is gone only after this block.
        torch.cuda.empty_cache()
        return shard, None
