"""A sweep: networks x methods x trade-offs x seeds, trained in shards of models side by side, a row for each model."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesprune.errors import InputError, RunFolderError, StorageError
from bayesprune.experiments.capacity import models_that_fit
from bayesprune.experiments.engine import Crew, Engine, LocalEngine
from bayesprune.experiments.main_job import RunConfig, check_config, config_from, is_as_before, written_before
from bayesprune.experiments.shard import Shard, forget
from bayesprune.experiments.watching import SweepWatcher
from bayesprune.storage import exists, read_json, read_rows, write_json, write_rows
from bayesprune.training.lock import sole_use
from bayesprune.training.store import CONFIGURATION, check_folder, claim_folder

ROWS, SHARDS, CHECKPOINTS = "rows.jsonl", "shards.json", "shards"
SIDE_BY_SIDE = {"cpu": 15, "cuda": 128}
"""How many models are trained side by side at most, by the type of the device: beyond that nothing is gained."""


@dataclass(frozen=True)
class Sweep:
    """Which models to train.

    Attributes:
        members: what each of them is.
        side_by_side: how many at most are trained at a time; None for as many as the device holds and as pay.
    """

    members: tuple[RunConfig, ...]
    side_by_side: int | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("a sweep has at least one model: give networks, methods, trade-offs and seeds")
        if len(set(self.members)) < len(self.members):
            raise InputError("a model is twice in the sweep: give every trade-off and every seed once")
        if self.side_by_side is not None and self.side_by_side < 1:
            raise InputError(f"at least one model is trained at a time, not {self.side_by_side}")

    def shards(self) -> list[tuple[int, ...]]:
        """The members by number, in groups that can be trained side by side."""
        groups: dict[RunConfig, list[int]] = {}
        for number, member in enumerate(self.members):
            groups.setdefault(replace(member, tradeoff=None, kl_scale=None, seed=0), []).append(number)
        return [shard for group, numbers in groups.items() for shard in _cut(numbers, self.side_by_side or _usual_size(group))]


def read_sweep(folder: Path) -> Sweep:
    """The sweep of a folder.

    Raises:
        RunFolderError: it is no sweep's folder.
    """
    path = folder / CONFIGURATION
    stored: Any = read_json(path) if exists(path) else None
    if not isinstance(stored, dict) or not isinstance(stored.get("members"), list) or "side_by_side" not in stored:
        raise RunFolderError(f"{folder} is not a sweep's folder: give the one that an earlier sweep printed")
    members, side_by_side = stored["members"], stored["side_by_side"]
    if not all(isinstance(member, dict) for member in members) or not (side_by_side is None or type(side_by_side) is int):
        raise StorageError(f"{path} is damaged: put a good copy in its place or start a new sweep")
    return Sweep(tuple(config_from(member, path) for member in members), side_by_side)


def run_sweep(sweep: Sweep, folder: Path, watcher: SweepWatcher, engine: Engine | None = None) -> list[dict[str, Any]]:
    """Train all models of a sweep that have no row yet.

    The folder holds ``config.json``, ``shards.json``, ``rows.jsonl`` and, in ``shards/``, the checkpoints of the shards in progress. A row
    is written once, by this process, when its shard is finished, together with all others of the file; whenever a sweep is stopped, it goes
    on after the last checkpoints, with this engine or another.

    Args:
        sweep: which models.
        folder: of the sweep.
        watcher: is told of progress.
        engine: trains the shards; by default this process, one after another.

    Returns:
        The rows, in the order of the members.
    """
    for member in sweep.members:
        check_config(member)
    configurations = [{"members": [asdict(member) for member in sweep.members], "side_by_side": sweep.side_by_side}]
    if all(is_as_before(member) for member in sweep.members):
        configurations.append({**configurations[0], "members": [written_before(member) for member in sweep.members]})
    check_folder(folder, *configurations)
    with sole_use(folder):
        claim_folder(folder, *configurations)
        rows = _read_members(folder / ROWS, len(sweep.members)) if exists(folder / ROWS) else {}
        watcher.sweep_started(sweep.members, list(rows.values()))
        if any(not _finished(shard, rows) for shard in _shards(sweep, folder)):
            with (engine or LocalEngine()).started(folder / CHECKPOINTS, watcher) as crew:
                _train(sweep, folder, rows, crew, watcher)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return [rows[number] for number in range(len(sweep.members))]


def _train(sweep: Sweep, folder: Path, rows: dict[int, dict[str, Any]], crew: Crew, watcher: SweepWatcher) -> None:
    """Have all shards trained that lack rows, and add the rows to those that are there."""
    waiting: set[Shard] = set()

    def submit(numbers: tuple[int, ...]) -> None:
        shard = Shard(numbers, tuple(sweep.members[number] for number in numbers))
        waiting.add(shard)
        crew.submit(shard)

    for numbers in _shards(sweep, folder):
        if not _finished(numbers, rows):
            submit(numbers)
    while waiting:
        shard, found = crew.wait()
        waiting.remove(shard)
        if found is None:
            watcher.shard_split(shard)
            for half in _halve(_shards(sweep, folder), shard.numbers, folder):
                submit(half)
        else:
            rows |= {row["member"]: row for row in found}
            write_rows(folder / ROWS, [row for _, row in sorted(rows.items())])
            watcher.shard_finished(shard, found)
        forget(folder / CHECKPOINTS, shard)


def _finished(numbers: tuple[int, ...], rows: dict[int, dict[str, Any]]) -> bool:
    return set(numbers) <= rows.keys()


def _shards(sweep: Sweep, folder: Path) -> list[tuple[int, ...]]:
    """How the sweep is split: as it was decided before, because a model's last digits depend on it."""
    path = folder / SHARDS
    if not exists(path):
        write_json(path, sweep.shards())
    shards = read_json(path)
    whole = isinstance(shards, list) and all(isinstance(shard, list) for shard in shards)
    if not whole or sorted(map(str, itertools.chain(*shards))) != sorted(map(str, range(len(sweep.members)))):
        raise StorageError(f"{path} is damaged: it does not name every model once; put a good copy in its place or start a new sweep")
    return [tuple(shard) for shard in shards]


def _read_members(path: Path, members: int) -> dict[int, dict[str, Any]]:
    """The rows that are there, by the number of their model."""
    rows = {}
    for line, row in enumerate(read_rows(path), start=1):
        if not isinstance(row, dict) or row.get("member") not in range(members) or "status" not in row:
            raise StorageError(f"{path}, line {line} is no row of this sweep; take it out, and its model is trained again")
        rows[row["member"]] = row
    return rows


def _halve(shards: list[tuple[int, ...]], shard: tuple[int, ...], folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a shard that the device has no memory for."""
    if len(shard) == 1:
        raise InputError("the device has not enough memory for a single model: choose another --device or a smaller network")
    middle, number = (len(shard) + 1) // 2, shards.index(shard)
    halves = shard[:middle], shard[middle:]
    write_json(folder / SHARDS, [*shards[:number], *halves, *shards[number + 1 :]])
    return halves


def _usual_size(member: RunConfig) -> int:
    """How many models like this one are trained side by side: as many as pay and, on a GPU that is at hand, as many as fit."""
    device = torch.device(member.device).type
    most = 1 if member.network == "vgg-like" else SIDE_BY_SIDE.get(device, 1)
    return models_that_fit(member, most) if device == "cuda" and torch.cuda.is_available() else most


def _cut(numbers: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """In parts of about the same size, none larger than this."""
    parts = -(-len(numbers) // size)
    for part in range(parts):
        yield tuple(numbers[part * len(numbers) // parts : (part + 1) * len(numbers) // parts])
