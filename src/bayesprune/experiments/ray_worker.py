"""What a worker of a Ray cluster does for a sweep: train one shard, and answer with rows or with what went wrong."""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesprune.errors import BayespruneError, ClusterError, StorageError
from bayesprune.experiments.shard import KnownData, Shard, ShardProgress, ShardWatcher, known_data, run_shard, take_over
from bayesprune.version import __version__

TOKEN = ".token"
_SECONDS_BETWEEN = 0.5
"""Between two reports of steps."""
_known: KnownData = {}
"""Ray uses a process for one task after another."""


@dataclass(frozen=True)
class Order:
    """What a worker is told.

    Attributes:
        shard: to train.
        checkpoints: the sweep's folder for them, which may be out of the worker's reach.
        token: what the file of that name there says, if it is the same folder.
        data_dir: where the data set is, as it is found from anywhere.
        device: to train on; Ray shows a worker its own GPU alone.
        threads: of the processor.
        version: of the sweep's bayesprune.
    """

    shard: Shard
    checkpoints: Path
    token: str
    data_dir: str | None
    device: str
    threads: int
    version: str = __version__


@dataclass(frozen=True)
class Reply:
    """A row for each model; or an error of ours, as a value, so that it arrives as it is; or neither, where memory was short."""

    rows: list[dict[str, Any]] | None = None
    error: BayespruneError | None = None


def work(order: Order, report: Callable[[str, dict[str, Any]], None]) -> Reply:
    """Train a shard.

    Args:
        order: which, and how.
        report: is given the shard's name and how far it is; whatever it raises does not matter.
    """
    if order.version != __version__:
        return Reply(
            error=ClusterError(f"{platform.node()} has bayesprune {__version__}, not {order.version}: install the same everywhere")
        )
    torch.set_num_threads(order.threads)
    told = 0.0

    def tell(progress: ShardProgress, important: bool) -> None:
        nonlocal told
        if important or time.monotonic() - told > _SECONDS_BETWEEN:
            told = time.monotonic()
            with suppress(Exception):
                report(order.shard.name, asdict(progress))

    try:
        with _folder(order) as folder:
            data = known_data(replace(order.shard.members[0], data_dir=order.data_dir), _known)
            watcher = ShardWatcher(tell, f"process {os.getpid()} on {platform.node()}")
            tell(watcher.progress, True)
            return Reply(run_shard(order.shard, folder, data, watcher, order.device))
    except BayespruneError as error:
        return Reply(error=error)
    except torch.cuda.OutOfMemoryError:
        pass  # What holds the memory is gone only after this block.
    torch.cuda.empty_cache()
    return Reply()


@contextmanager
def _folder(order: Order) -> Iterator[Path]:
    """One for the shard's checkpoints: the sweep's where the worker reaches it, so that others can go on, or else one of its own."""
    if _reaches(order):
        try:
            folder = take_over(order.checkpoints, order.shard)
        except StorageError:
            folder = None
        if folder is not None:
            yield folder
            return
    with tempfile.TemporaryDirectory(prefix="bayesprune-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary) / order.shard.name


def _reaches(order: Order) -> bool:
    try:
        return (order.checkpoints / TOKEN).read_text() == order.token and os.access(order.checkpoints, os.W_OK)
    except (OSError, ValueError):
        return False
