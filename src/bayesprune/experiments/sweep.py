"""A sweep: networks x methods x trade-offs x seeds, trained in shards of models side by side, a row for each model."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bayesprune.data import Dataset
from bayesprune.errors import InputError, RunFolderError
from bayesprune.experiments.main_job import (
    RunConfig,
    batches_of,
    build_seeded,
    check_config,
    data_of,
    plan_of,
    surroundings,
    with_tradeoff,
)
from bayesprune.experiments.watching import SweepWatcher
from bayesprune.storage import exists, read_json, read_rows, write_json, write_rows
from bayesprune.training.devices import usable_device
from bayesprune.training.lock import sole_use
from bayesprune.training.stages import DIVERGED, run_stages
from bayesprune.training.store import CONFIGURATION, RunStore, check_folder, claim_folder
from bayesprune.training.watching import Watcher

ROWS, SHARDS = "rows.jsonl", "shards.json"
SIDE_BY_SIDE = {"cpu": 15, "cuda": 128}
"""How many models are trained side by side at most, by the type of the device."""


@dataclass(frozen=True)
class Sweep:
    """Which models to train.

    Attributes:
        members: what each of them is.
        side_by_side: how many at most are trained at a time; None for as many as the device is expected to hold.
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
    try:
        return Sweep(tuple(RunConfig(**member) for member in stored["members"]), stored["side_by_side"])
    except (TypeError, LookupError) as error:
        raise RunFolderError(f"{folder} is not a sweep's folder: give the one that an earlier sweep printed") from error


def run_sweep(sweep: Sweep, folder: Path, watcher: SweepWatcher) -> list[dict[str, Any]]:
    """Train all models of a sweep that have no row yet.

    The folder holds ``config.json``, ``shards.json``, ``rows.jsonl`` and the checkpoints of the shard in progress. A row is written once,
    when its shard is finished, together with all others of the file; whenever a sweep is stopped, it goes on after the last checkpoint.

    Returns:
        The rows, in the order of the members.
    """
    for member in sweep.members:
        check_config(member)
    configuration = {"members": [asdict(member) for member in sweep.members], "side_by_side": sweep.side_by_side}
    check_folder(folder, configuration)
    with sole_use(folder):
        claim_folder(folder, configuration)
        data: dict[tuple[str, str | None], Dataset] = {}
        while True:
            shards = _shards(sweep, folder)
            rows = {row["member"]: row for row in (read_rows(folder / ROWS) if exists(folder / ROWS) else [])}
            todo = [(number, shard) for number, shard in enumerate(shards) if not set(shard) <= rows.keys()]
            if not todo:
                shutil.rmtree(folder / "shard", ignore_errors=True)
                return [rows[number] for number in range(len(sweep.members))]
            number, shard = todo[0]
            members = [sweep.members[each] for each in shard]
            title = f"{members[0].network} on {members[0].dataset}, {members[0].method}"
            watcher.shard_started(number + 1, len(shards), title, len(members), len(rows))
            try:
                finished = _run_shard(members, folder / "shard", _data_of(members[0], data), watcher)
            except torch.cuda.OutOfMemoryError:
                _halve(shards, number, folder)
                continue
            new = [{"member": each, **row} for each, row in zip(shard, finished, strict=True)]
            write_rows(folder / ROWS, [row for _, row in sorted((rows | {row["member"]: row for row in new}).items())])
            shutil.rmtree(folder / "shard", ignore_errors=True)
            watcher.shard_finished()


def _run_shard(members: Sequence[RunConfig], folder: Path, data: Dataset, watcher: Watcher) -> list[dict[str, Any]]:
    """Train models side by side; their rows."""
    first = members[0]
    recipe, device = check_config(first), usable_device(first.device)
    configuration = {"members": [asdict(member) for member in members]}
    if exists(folder) and read_json(folder / CONFIGURATION) != json.loads(json.dumps(configuration)):
        shutil.rmtree(folder)  # Of a shard whose rows were written just before the sweep was stopped, or that was too large.
    store = RunStore(folder, configuration)
    models = [build_seeded(member, data).to(device) for member in members]
    plans = [plan_of(member, recipe, len(data.train)) for member in members]
    training, test = batches_of(data, recipe, device)
    runs = run_stages(models, plans, training, test, F.cross_entropy, store, watcher)
    rows = []
    for member, run in zip(members, runs, strict=True):
        last = run.results[-1]
        outcome = {name: last.get(name) for name in ("error", "kept", "speedup", "memory")}
        status = {"status": DIVERGED, "reason": last["reason"]} if run.diverged else {"status": "finished"}
        rows.append({**asdict(with_tradeoff(member)), **status, **outcome, "stages": run.results, **surroundings(device)})
    return rows


def _data_of(member: RunConfig, known: dict[tuple[str, str | None], Dataset]) -> Dataset:
    key = (member.dataset, member.data_dir)
    if key not in known:
        known[key] = data_of(member)
    return known[key]


def _shards(sweep: Sweep, folder: Path) -> list[tuple[int, ...]]:
    """How the sweep is split: as it was decided before, because a model's last digits depend on it."""
    path = folder / SHARDS
    if not exists(path):
        write_json(path, sweep.shards())
    return [tuple(shard) for shard in read_json(path)]


def _halve(shards: list[tuple[int, ...]], number: int, folder: Path) -> None:
    """Split a shard that the device has no memory for."""
    shard = shards[number]
    if len(shard) == 1:
        raise InputError("the device has not enough memory for a single model: choose another --device or a smaller network")
    middle = (len(shard) + 1) // 2
    write_json(folder / SHARDS, [*shards[:number], shard[:middle], shard[middle:], *shards[number + 1 :]])
    torch.cuda.empty_cache()


def _usual_size(member: RunConfig) -> int:
    return 1 if member.network == "vgg-like" else SIDE_BY_SIDE.get(torch.device(member.device).type, 1)


def _cut(numbers: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """In parts of about the same size, none larger than this."""
    parts = -(-len(numbers) // size)
    for part in range(parts):
        yield tuple(numbers[part * len(numbers) // parts : (part + 1) * len(numbers) // parts])
