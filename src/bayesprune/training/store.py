"""Where the stages of a run are kept on disk."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesprune.errors import RunFolderError, StorageError
from bayesprune.storage import (
    append_row,
    exists,
    files_in,
    is_folder,
    make_folder,
    read_json,
    read_tensors,
    remove_unfinished,
    unfinished_files,
    write_json,
    write_rows,
    write_tensors,
)
from bayesprune.training.lock import LOCK, sole_use
from bayesprune.training.recipes import StageName


@dataclass
class StageRecord:
    """What is known of a stage so far.

    Attributes:
        stage: its name.
        epoch: how many epochs are done.
        seconds: that they took.
        rows: the metrics of every epoch of the run up to here, earlier stages included; none for models that are trained side by side.
        results: once it is finished, each model's row in the summary.
        diverged: the models that were set aside, by number, and why.
        removals: when units were taken out of the models, and how many of each gate were left.
        staying: gates whose units could not be taken out, and why.
        histories: of models that are trained side by side, error and units kept of each whenever they were evaluated.
    """

    stage: StageName
    epoch: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] | None = None
    diverged: dict[str, str] = field(default_factory=dict)
    removals: list[dict[str, Any]] = field(default_factory=list)
    staying: dict[str, str] = field(default_factory=dict)
    histories: list[list[dict[str, Any]]] = field(default_factory=list)


_SOON_WRITTEN, _WRITING_SHARE, _AT_LATEST = 0.25, 0.05, 300.0
"""Seconds that nobody minds at the end of an epoch, the part of the time that longer ones may take, and after which one is due anyway."""
CONFIGURATION = "config.json"
_NAMED = 6
CHECKPOINTS = "checkpoints"
MODEL = "model/"
OPTIMIZER = "optimizer/"
KEPT = "kept/"
"""Tensors in a checkpoint are named after what they belong to."""


def claim_folder(folder: Path, configuration: dict[str, Any], *earlier: dict[str, Any]) -> None:
    """Make a folder that of a run with this configuration, or see that it is.

    Args:
        folder: of the run.
        configuration: of the run.
        *earlier: how earlier versions would have written it.

    Raises:
        RunFolderError: it belongs to another run, or holds something else.
    """
    make_folder(folder)
    check_folder(folder, configuration, *earlier)
    if not exists(folder / CONFIGURATION):
        write_json(folder / CONFIGURATION, configuration)


def check_folder(folder: Path, configuration: dict[str, Any], *earlier: dict[str, Any]) -> None:
    """Refuse, touching nothing, what ``claim_folder`` refuses."""
    path = folder / CONFIGURATION
    if exists(path):
        there = read_json(path)
        stored = there if isinstance(there, dict) else {"everything": there}
        differing = min((_differences(stored, json.loads(json.dumps(each))) for each in (configuration, *earlier)), key=len)
        if differing:
            named = ", ".join(differing[:_NAMED]) + (f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else "")
            raise RunFolderError(f"{folder} holds a run of another configuration (it differs in {named}); choose another folder")
    elif is_folder(folder) and set(files_in(folder)) - {*unfinished_files(folder), folder / LOCK}:
        raise RunFolderError(f"{folder} is not empty and not a run's folder: it has no {CONFIGURATION}; choose another one")


def _differences(stored: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> list[str]:
    """Every setting that differs, with both values."""
    found = []
    for key in sorted(stored.keys() | wanted.keys()):
        there, here = stored.get(key), wanted.get(key)
        if isinstance(there, dict) and isinstance(here, dict):
            found += _differences(there, here, f"{prefix}{key}.")
        elif there != here:
            found.append(f"{prefix}{key} ({_shown(there)} there, {_shown(here)} here)")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def finished_stage(folder: Path, stage: StageName) -> Path:
    """The file that keeps the models of a finished stage."""
    return folder / CHECKPOINTS / f"{stage}.safetensors"


class RunStore:
    """Checkpoints and metrics of a run in a folder.

    ``config.json``, written first, says what the run is. ``checkpoints/STAGE.safetensors`` is a finished stage,
    ``checkpoints/current.safetensors`` the stage in progress after its last complete epoch, ``metrics.jsonl`` a row for each epoch. A
    checkpoint holds the rows too, and the file is rewritten from it when a run is taken up, so that an epoch which was cut off after its
    row was written is not counted twice.
    """

    seconds_between = 60.0
    """So many pass between two checkpoints of models that are trained side by side, which are large."""

    def __init__(self, folder: Path, configuration: dict[str, Any], *earlier: dict[str, Any]) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.metrics = folder / "metrics.jsonl"
        claim_folder(folder, configuration, *earlier)
        make_folder(self.checkpoints)
        remove_unfinished(self.folder)
        remove_unfinished(self.checkpoints)

    def load(self, stage: StageName) -> tuple[dict[str, Tensor], StageRecord] | None:
        """The finished stage, or the one in progress if it is this one; None where there is neither."""
        for path in (self._finished(stage), self._current()):
            if exists(path):
                tensors, description = read_tensors(path)
                record = _read_record(path, description)
                if record.stage == stage:
                    return tensors, record
        return None

    def save(self, tensors: dict[str, Tensor], record: StageRecord) -> None:
        """Keep a stage after an epoch; once it is finished, its model alone, under its own name."""
        if record.results is None:
            write_tensors(self._current(), tensors, vars(record))
            return
        write_tensors(self._finished(record.stage), {name: t for name, t in tensors.items() if name.startswith(MODEL)}, vars(record))
        self._current().unlink(missing_ok=True)

    def is_due(self, alone: bool, since: float, cost: float) -> bool:
        """Whether it is time for another checkpoint.

        Of one model every epoch is kept, unless writing takes a while: then it gets a small share of the time.

        Args:
            alone: one model is trained.
            since: seconds since the last checkpoint.
            cost: seconds that it took to write.
        """
        if not alone:
            return since > self.seconds_between
        return cost < _SOON_WRITTEN or cost < _WRITING_SHARE * since or since > _AT_LATEST

    def take_up(self, rows: list[dict[str, Any]]) -> None:
        """Let the metrics file hold these rows and no others."""
        write_rows(self.metrics, rows)

    def append(self, row: dict[str, Any]) -> None:
        append_row(self.metrics, row)

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """The run is complete: these are its rows, and nothing is in progress any more."""
        self.take_up(rows)
        self._current().unlink(missing_ok=True)

    def describe(self) -> str:
        """What to tell a user whose training failed."""
        kept = any(path.suffix == ".safetensors" for path in files_in(self.checkpoints))
        return f"the last good checkpoint is in {self.checkpoints}" if kept else "no epoch was finished, so there is no checkpoint"

    def _finished(self, stage: StageName) -> Path:
        return finished_stage(self.folder, stage)

    def _current(self) -> Path:
        return self.checkpoints / "current.safetensors"


class NoStore(RunStore):
    """Keeps nothing, for training in memory."""

    def __init__(self) -> None:
        """There is no folder."""

    def load(self, stage: StageName) -> None:
        return None

    def save(self, tensors: dict[str, Tensor], record: StageRecord) -> None:
        """Nothing to keep."""

    def is_due(self, alone: bool, since: float, cost: float) -> bool:
        return False

    def take_up(self, rows: list[dict[str, Any]]) -> None:
        """Nothing to rewrite."""

    def append(self, row: dict[str, Any]) -> None:
        """Nothing to append to."""

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """Nothing to finish."""

    def describe(self) -> str:
        return "no checkpoint was kept: give a folder to keep them"


@contextmanager
def run_store(folder: Path, configuration: dict[str, Any], *earlier: dict[str, Any]) -> Iterator[RunStore]:
    """The store of a run, in a folder that no other process works in meanwhile; one that is not the run's stays as it is."""
    check_folder(folder, configuration, *earlier)
    with sole_use(folder):
        yield RunStore(folder, configuration, *earlier)


def _read_record(path: Path, description: dict[str, Any]) -> StageRecord:
    try:
        return StageRecord(**description)
    except TypeError as error:
        raise StorageError(f"{path} is not a checkpoint of a stage: {error}") from error
