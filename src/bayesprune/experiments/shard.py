"""A shard of a sweep: models that are trained side by side, in a folder of checkpoints that is theirs alone."""

import json
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from bayesprune.data import Dataset
from bayesprune.errors import DivergedError, StorageError
from bayesprune.experiments.main_job import (
    GATE_SETTINGS,
    RunConfig,
    batches_of,
    build_seeded,
    check_config,
    data_of,
    plan_of,
    spelled_out,
    surroundings,
)
from bayesprune.storage import exists, files_in, is_folder, make_folder, read_json
from bayesprune.training.devices import usable_device
from bayesprune.training.recipes import StageName
from bayesprune.training.stages import DIVERGED, FINISHED, StagedRun, run_stages
from bayesprune.training.store import CONFIGURATION, RunStore
from bayesprune.training.watching import Watcher

KnownData = dict[tuple[str, str | None], Dataset]
"""Data sets that a process has read before, by name and folder."""


@dataclass(frozen=True)
class Shard:
    """Models that are trained side by side.

    Attributes:
        numbers: of the models in their sweep.
        members: what each of them is.
    """

    numbers: tuple[int, ...]
    members: tuple[RunConfig, ...]

    @property
    def name(self) -> str:
        """Of its folder; a part of the shard has another one."""
        return f"{self.numbers[0]}-{len(self.numbers)}"

    @property
    def label(self) -> str:
        """Which models these are, counted from one."""
        first, last = self.numbers[0] + 1, self.numbers[-1] + 1
        return f"model {first}" if first == last else f"models {first}-{last}"

    @property
    def title(self) -> str:
        first = self.members[0]
        return f"{first.network} on {first.dataset}, {first.method}"

    @property
    def stages(self) -> tuple[StageName, ...]:
        """What its models go through."""
        return tuple(plan_of(self.members[0], check_config(self.members[0]), n_data=1).stages)


@dataclass
class ShardProgress:
    """How far a shard is.

    Attributes:
        stage: in progress.
        epochs: of the stage.
        steps: of an epoch.
        done: steps of the stage.
        row: medians over the models after the last epoch at which they were evaluated.
        place: where it is trained, for people.
    """

    stage: StageName | None = None
    epochs: int = 0
    steps: int = 0
    done: int = 0
    row: dict[str, Any] | None = None
    place: str = ""

    @property
    def epoch(self) -> int:
        """The number of the epoch in progress, counted from one."""
        return min(self.done // max(self.steps, 1) + 1, max(self.epochs, 1))

    def share(self, stages: tuple[StageName, ...]) -> float:
        """How much of all stages is done, as if they took the same time."""
        if self.stage not in stages:
            return 0.0
        return min((stages.index(self.stage) + self.done / max(self.epochs * self.steps, 1)) / len(stages), 1.0)


class ShardWatcher:
    """Keeps account of how far a shard is.

    Args:
        tell: is given the account after every change, and whether it is more than a step.
        place: where the shard is trained.
    """

    def __init__(self, tell: Callable[[ShardProgress, bool], None], place: str = "") -> None:
        self.tell, self.progress = tell, ShardProgress(place=place)

    def say(self, line: str) -> None:
        """Shards have nothing to say."""

    def stage_started(self, stage: StageName, epochs: int, steps: int, done: int) -> None:
        progress = self.progress
        progress.stage, progress.epochs, progress.steps, progress.done = stage, epochs, steps, done * steps
        self.tell(progress, True)

    def step(self, loss: float) -> None:
        self.progress.done += 1
        self.tell(self.progress, False)

    def epoch_finished(self, row: dict[str, Any]) -> None:
        self.progress.row = row
        self.tell(self.progress, True)

    def stage_finished(self, result: dict[str, Any]) -> None:
        self.progress.done = self.progress.epochs * self.progress.steps
        self.tell(self.progress, True)


def run_shard(shard: Shard, folder: Path, data: Dataset, watcher: Watcher, device_name: str | None = None) -> list[dict[str, Any]]:
    """Train the models of a shard, or go on with them.

    Args:
        shard: which models.
        folder: for checkpoints, which nobody else writes to.
        data: of all of them.
        watcher: is told of progress.
        device_name: what the models' device is called here, if it is called otherwise.

    Returns:
        A row for each model.
    """
    first = shard.members[0]
    recipe, device = check_config(first), usable_device(device_name or first.device)
    plans = [plan_of(member, recipe, len(data.train)) for member in shard.members]
    configuration = {"members": [asdict(member) for member in shard.members], GATE_SETTINGS: [plan.gate_settings() for plan in plans]}
    if exists(folder / CONFIGURATION) and _read(folder / CONFIGURATION) != json.loads(json.dumps(configuration)):
        shutil.rmtree(folder)  # It was left behind by a shard of this name that was split or set up in another way, or it is damaged.
    store = RunStore(folder, configuration)
    models = [build_seeded(member, data).to(device) for member in shard.members]
    training, test = batches_of(data, recipe, device)
    try:
        runs = run_stages(models, plans, training, test, F.cross_entropy, store, watcher)
    except DivergedError as error:  # The only model of the shard: among several it would have been set aside.
        runs = [StagedRun(models[0], [{"status": DIVERGED, "reason": str(error), "error": None}])]
    rows = []
    for number, member, run in zip(shard.numbers, shard.members, runs, strict=True):
        last = run.results[-1]
        outcome = {name: last.get(name) for name in ("error", "kept", "speedup", "memory")}
        status = {"status": DIVERGED, "reason": last["reason"]} if run.diverged else {"status": FINISHED}
        row = {"member": number, **asdict(spelled_out(member)), **status, **outcome, "stages": run.results, **surroundings(device)}
        rows.append(row)
    return rows


def _read(path: Path) -> Any:
    """What a JSON file holds; nothing if it is damaged."""
    try:
        return read_json(path)
    except StorageError:
        return None


def known_data(member: RunConfig, known: KnownData) -> Dataset:
    """The data set of a model, read if it is not known."""
    key = (member.dataset, member.data_dir)
    if key not in known:
        known[key] = data_of(member)
    return known[key]


def take_over(checkpoints: Path, shard: Shard) -> Path:
    """A folder for a shard that this process alone knows, with the checkpoints of whoever worked on the shard before.

    The earlier folder is renamed. That is one step for the file system, also on a disk that several machines share: of two processes that
    try, one succeeds, and a process that is still at work there, because only its connection was lost, finds its folder gone and stops.
    """
    make_folder(checkpoints)
    own = checkpoints / f"{shard.name}.{secrets.token_hex(6)}"
    for earlier in sorted(_folders(checkpoints, shard), key=_changed, reverse=True):
        with suppress(OSError):  # Somebody else was faster, or the system keeps folders whose files are open.
            earlier.rename(own)
            break
    return own


def forget(checkpoints: Path, shard: Shard) -> None:
    """Remove the checkpoints of a shard."""
    for folder in _folders(checkpoints, shard):
        shutil.rmtree(folder, ignore_errors=True)


def _folders(checkpoints: Path, shard: Shard) -> list[Path]:
    return [path for path in files_in(checkpoints) if path.name.startswith(f"{shard.name}.")] if is_folder(checkpoints) else []


def _changed(folder: Path) -> float:
    """When a checkpoint was last written."""
    try:
        return (folder / "checkpoints").stat().st_mtime
    except OSError:
        return 0.0
