"""The paper's tables, trained again: which rows are there, which are missing, and where they are written."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesprune.data import Dataset
from bayesprune.data.dataset import Split
from bayesprune.errors import ResultsError
from bayesprune.experiments.fleets import Fleets
from bayesprune.experiments.main_job import RunConfig, data_of
from bayesprune.experiments.protocol import Entry, Fleet, Protocol
from bayesprune.storage import exists, make_folder, read_rows, write_rows
from bayesprune.training.devices import usable_device
from bayesprune.training.lock import sole_use
from bayesprune.training.store import check_folder, claim_folder
from bayesprune.training.watching import Watcher


@dataclass(frozen=True)
class Places:
    """Where a reproduction writes.

    Attributes:
        rows: a JSON line for each row.
        models: a folder for the models that figures are drawn from.
        work: a folder for checkpoints, from which it goes on when it was stopped.
    """

    rows: Path
    models: Path
    work: Path


def run_reproduction(
    protocol: Protocol, places: Places, watcher: Watcher, *, device: str, data_dir: str | None = None, side_by_side: int | None = None
) -> list[dict[str, Any]]:
    """Train every row of a protocol that is not there yet.

    Rows are written when their fleet is finished. Whenever it is stopped, it goes on after the last checkpoint; rows that are there are
    not trained again. The pretrained networks stay in the folder until no row is missing.

    Args:
        protocol: what to train.
        places: where to write.
        watcher: is told of progress.
        device: to train on.
        data_dir: where the data set is.
        side_by_side: how many models are trained at a time at most.

    Returns:
        All rows, in the order of the tables.

    Raises:
        ResultsError: the rows that are there are of something else.
    """
    common = RunConfig(network=protocol.network, dataset=protocol.dataset, recipe="paper", device=device, data_dir=data_dir, shrink=False)
    configuration = _configuration(protocol, data_dir)
    check_folder(places.work, configuration)
    rows = rows_there(protocol, places.rows)
    fleets = [fleet for fleet in protocol.fleets(side_by_side) if not _finished(fleet, rows)]
    if fleets:
        where = usable_device(device)
        with sole_use(places.work):
            claim_folder(places.work, configuration)
            models = None if protocol.is_own else places.models
            at_work = Fleets(protocol, common, _data(protocol, common), where, places.work, models, watcher)
            for number, fleet in enumerate(fleets, start=1):
                watcher.say(f"{number} of {len(fleets)}: {fleet.title}")
                rows |= at_work.train(fleet)
                make_folder(places.rows.parent)
                write_rows(places.rows, in_order(protocol, rows))
    if all(entry in rows for entry in protocol.all_entries()):
        shutil.rmtree(places.work, ignore_errors=True)
    return in_order(protocol, rows)


def rows_there(protocol: Protocol, path: Path) -> dict[Entry, dict[str, Any]]:
    """The rows of a protocol that a file holds.

    Raises:
        ResultsError: it holds something else.
    """
    found: dict[Entry, dict[str, Any]] = {}
    for number, row in enumerate(read_rows(path) if exists(path) else [], start=1):
        try:
            about = (row["network"], row["dataset"], row["recipe"])
            entry = Entry(row["method"], row["tradeoff"], row["seed"])
        except (KeyError, TypeError) as error:
            raise ResultsError(f"{path}, line {number} is no row of a reproduction; mend the file or put it elsewhere") from error
        if about != (protocol.network, protocol.dataset, protocol.recipe.name):
            raise ResultsError(
                f"{path}, line {number} is of {about[0]} on {about[1]}, recipe {about[2]}, but rows of {protocol.network} on "
                f"{protocol.dataset}, recipe {protocol.recipe.name}, are to be written there; choose another folder for the results"
            )
        if entry in found:
            raise ResultsError(f"{path}, line {number} has {entry.title} a second time; take one of them out")
        found[entry] = row
    return found


def in_order(protocol: Protocol, rows: dict[Entry, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as in the tables; those that the tables do not have come last."""
    places = {entry: number for number, entry in enumerate(protocol.all_entries())}
    return [row for _, row in sorted(rows.items(), key=lambda item: places.get(item[0], len(places)))]


def _finished(fleet: Fleet, rows: dict[Entry, dict[str, Any]]) -> bool:
    return all(entry in rows for entry in fleet.entries)


def _data(protocol: Protocol, common: RunConfig) -> Dataset:
    data = data_of(common)
    if protocol.training_images is None:
        return data
    first = slice(protocol.training_images)
    return replace(data, train=Split(data.train.images[first], data.train.labels[first]))


def _configuration(protocol: Protocol, data_dir: str | None) -> dict[str, Any]:
    """What the checkpoints of a folder depend on: which methods are asked for is no part of it."""
    about = {"network": protocol.network, "dataset": protocol.dataset, "seeds": list(protocol.seeds), "data_dir": data_dir}
    stages = {name: stage.written() for name, stage in protocol.recipe.stages.items()}
    return {**about, "recipe": protocol.recipe.name, "stages": stages, "training_images": protocol.training_images}
