"""The paper's tables, trained again: which rows are there, which are missing, and where they are written."""

import os
import shutil
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesprune.errors import InputError, ResultsError, RunFolderError
from bayesprune.experiments.fleets import Fleets
from bayesprune.experiments.main_job import RunConfig, build_seeded, data_of
from bayesprune.experiments.protocol import Entry, Protocol, is_of_variant
from bayesprune.experiments.rehearsal import Rehearsals
from bayesprune.experiments.rows import STAGE_RECIPE, read_result_rows
from bayesprune.storage import exists, is_folder, make_folder, write_rows
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
        networks: a folder for what is left of large networks, as artifacts.
        work: a folder for checkpoints, from which it goes on when it was stopped.
    """

    rows: Path
    models: Path
    networks: Path
    work: Path


def run_reproduction(
    protocol: Protocol, places: Places, watcher: Watcher, *, device: str, data_dir: str | None = None, side_by_side: int | None = None
) -> list[dict[str, Any]]:
    """Train every row of a protocol that is not there yet.

    Rows are written when their fleet is finished. Whenever it is stopped, it goes on after the last checkpoint; rows that are there are
    not trained again, but for those of BB where DBB, which starts from its models, is missing. The pretrained networks stay in the folder
    until no row is missing, those of a large network for good.

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
        InputError: results were to be written among the checkpoints, which are removed.
        ResultsError: the rows that are there are of something else.
    """
    _check_places(places)
    if side_by_side is not None and not protocol.table.together:
        raise InputError(f"models of {protocol.network} are trained one after the other: leave --side-by-side out")
    protocol = protocol.on(device)
    common = RunConfig(
        network=protocol.network,
        dataset=protocol.dataset,
        recipe="paper",
        device=device,
        data_dir=data_dir,
        before_norm=protocol.placement == "before norm",
        shrink=protocol.shrink,
        precision=protocol.precision or "float32",
    )
    configuration = _configuration(protocol, data_dir)
    try:
        check_folder(places.work, configuration)
    except RunFolderError as error:
        raise RunFolderError(f"{error} for checkpoints with --work, or remove this one") from error
    rows = rows_there(protocol, places.rows)
    fleets = [missing for fleet in protocol.fleets(side_by_side) if (missing := fleet.without(rows))]
    if fleets:
        where, data = usable_device(device), data_of(common)
        build_seeded(common, data)  # Refuses images that it cannot take, before the folder is bound to them.
        with sole_use(places.work), closing(Rehearsals(protocol, common, where, fleets, watcher)) as ahead:
            make_folder(places.rows.parent)
            write_rows(places.rows, in_order(protocol, rows_there(protocol, places.rows)))  # Where that fails, nothing should be trained.
            claim_folder(places.work, configuration)
            models = None if protocol.variant or (protocol.is_own and not protocol.table.shown) else places.models
            networks = None if protocol.table.together else places.networks
            at_work = Fleets(protocol, common, data, where, places.work, models, networks, ahead.watch)
            for number, fleet in enumerate(fleets, start=1):
                watcher.say(f"{number} of {len(fleets)}: {fleet.title}")
                trained = at_work.train(fleet)
                rows = rows_there(protocol, places.rows) | trained  # Another process, in another folder, may have added some meanwhile.
                write_rows(places.rows, in_order(protocol, rows))
                at_work.forget(fleet)
    if all(entry in rows for entry in protocol.all_entries()):
        _tidy(protocol, places.work)
    return in_order(protocol, rows)


def rows_there(protocol: Protocol, path: Path) -> dict[Entry, dict[str, Any]]:
    """The rows of a protocol that a file holds.

    Raises:
        ResultsError: it holds something else.
    """
    found = {}
    for number, row in enumerate(read_result_rows(path) if exists(path) else [], start=1):
        if (row.network, row.dataset, row.recipe) != (protocol.network, protocol.dataset, protocol.recipe.name):
            raise ResultsError(
                f"{path}, line {number} is of {row.network} on {row.dataset}, recipe {row.recipe}, but rows of {protocol.network} on "
                f"{protocol.dataset}, recipe {protocol.recipe.name}, are to be written there; choose another folder for the results"
            )
        asked = protocol.stage_of(row.method)
        if row.epochs is not None and row.epochs != asked.epochs:
            raise ResultsError(
                f"{path}, line {number} was trained for {row.epochs} epochs, not for {asked.epochs}, as the recipe {row.recipe} says now; "
                "choose another folder for the results"
            )
        if row.written.get(STAGE_RECIPE, asked.written()) != asked.written():
            raise ResultsError(
                f"{path}, line {number} was trained by another version of the recipe {row.recipe}, {row.written[STAGE_RECIPE]}; it says "
                f"{asked.written()} now; choose another folder for the results"
            )
        trained = {"placement": row.placement, "shrink": row.written.get("shrink", protocol.shrink), "precision": row.precision}
        differing = [f"{name} {value}, not {here}" for name, value in trained.items() if value != (here := getattr(protocol, name))]
        if differing:
            raise ResultsError(
                f"{path}, line {number} was trained in another way: {'; '.join(differing)}; ask for the same way, or choose another folder "
                "for the results"
            )
        found[row.entry] = row.written
    return found


def in_order(protocol: Protocol, rows: dict[Entry, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as in the tables; those that the tables do not have come last."""
    places = {entry: number for number, entry in enumerate(protocol.all_entries())}
    return [row for _, row in sorted(rows.items(), key=lambda item: places.get(item[0], len(places)))]


def _check_places(places: Places) -> None:
    work = os.path.realpath(places.work)
    for path in (places.rows, places.models, places.networks):
        if Path(os.path.realpath(path)).is_relative_to(work):
            raise InputError(f"{path} is in {places.work}, the folder for checkpoints, which is removed at the end: choose another one")


def _tidy(protocol: Protocol, work: Path) -> None:
    """Remove the checkpoints of a reproduction that is complete, unless a variant has some in the folder, or someone is at work there.

    Those of large networks stay: other seeds, and variants, start from the pretrained ones.
    """
    if not protocol.table.together or protocol.variant or not is_folder(work):
        return
    with suppress(RunFolderError), sole_use(work):
        if not any(is_of_variant(path.name) for path in work.iterdir()):
            shutil.rmtree(work, ignore_errors=True)


def _configuration(protocol: Protocol, data_dir: str | None) -> dict[str, Any]:
    """What the checkpoints of a folder depend on: which methods are asked for is no part of it, nor, one after the other, which seeds."""
    about: dict[str, Any] = {"network": protocol.network, "dataset": protocol.dataset, "data_dir": data_dir}
    if protocol.table.together:
        about["seeds"] = list(protocol.seeds)
    if protocol.precision != "float32":
        about["precision"] = protocol.precision
    stages = {name: stage.written() for name, stage in protocol.recipe.stages.items()}
    return {**about, "recipe": protocol.recipe.name, "stages": stages, "images": protocol.images and list(protocol.images)}
