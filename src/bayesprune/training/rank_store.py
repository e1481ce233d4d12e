"""The run folder of several processes: the first one's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor

from bayesprune.training.distributed import Ranks
from bayesprune.training.recipes import StageName
from bayesprune.training.store import NoStore, RunStore, StageRecord


class RankStore(RunStore):
    """Reads and writes in the first process alone. The others get what it reads and raise what it raises: no disk needs to be common.

    Args:
        ranks: the processes.
        own: the store of the first of them; of no use in the others.
    """

    def __init__(self, ranks: Ranks, own: RunStore) -> None:
        self.ranks, self.own = ranks, own

    def load(self, stage: StageName) -> tuple[dict[str, Tensor], StageRecord] | None:
        return self.ranks.first(lambda: self.own.load(stage))

    def save(self, tensors: dict[str, Tensor], record: StageRecord) -> None:
        self.ranks.first(lambda: self.own.save(tensors, record))

    def is_due(self, alone: bool, since: float, cost: float) -> bool:
        return self.ranks.first(lambda: self.own.is_due(alone, since, cost))

    def take_up(self, rows: list[dict[str, Any]]) -> None:
        self.ranks.first(lambda: self.own.take_up(rows))

    def append(self, row: dict[str, Any]) -> None:
        self.ranks.first(lambda: self.own.append(row))

    def finish(self, rows: list[dict[str, Any]]) -> None:
        self.ranks.first(lambda: self.own.finish(rows))

    def describe(self) -> str:
        return self.ranks.first(self.own.describe)


@contextmanager
def rank_store(ranks: Ranks, opened: Callable[[], AbstractContextManager[RunStore]]) -> Iterator[RunStore]:
    """The store that these processes share, opened by the first of them."""
    with ExitStack() as stack:
        if ranks.alone:
            yield stack.enter_context(opened())
            return
        found: list[RunStore] = []
        ranks.first(lambda: found.append(stack.enter_context(opened())))
        yield RankStore(ranks, found[0] if found else NoStore())
