"""How a network lost its units in a reproduction: BB first, then DBB, the median over seeds."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bayesprune.errors import StorageError
from bayesprune.experiments.published import tradeoff_value
from bayesprune.models.description import GatePlace
from bayesprune.report.figures.kept_units import draw_kept_units
from bayesprune.storage import read_rows

_METHODS = ("bb", "dbb")
_USUAL = "1"


def read_histories(path: Path, gates: int) -> list[dict[str, Any]]:
    """The finished BB and DBB rows of a reproduction's file that have a history, all of one recipe: the paper's, if it is there.

    Args:
        path: of the JSONL file.
        gates: how many the network has.

    Raises:
        StorageError: the file is damaged, or holds something else.
    """
    rows = []
    for number, row in enumerate(read_rows(path), start=1):
        wrong = _what_is_wrong(row, gates)
        if wrong is not None:
            raise StorageError(f"{path} is damaged or no file of a reproduction: line {number} {wrong}; put a good copy in its place")
        if row["method"] in _METHODS and row["status"] == "finished" and row.get("history"):
            rows.append(row)
    recipes = [row.get("recipe") for row in rows]
    chosen = "paper" if "paper" in recipes else next(iter(recipes), None)
    return [row for row in rows if row.get("recipe") == chosen]


def shown_tradeoff(rows: Sequence[dict[str, Any]]) -> str | None:
    """Which trade-off to show: 1, or else the smallest one; None if BB has no history."""
    tradeoffs = {row["tradeoff"] for row in rows if row["method"] == "bb"}
    return _USUAL if _USUAL in tradeoffs else min(tradeoffs, key=tradeoff_value, default=None)


def median_history(histories: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The median of several models' histories, number by number, at the epochs that all of them have."""
    by_epoch = [{point["epoch"]: point for point in history} for history in histories]
    common = sorted(set.intersection(*(set(points) for points in by_epoch))) if by_epoch else []
    timeline = []
    for epoch in common:
        points = [points[epoch] for points in by_epoch]
        timeline.append(
            {
                "epoch": epoch,
                "seconds": median(point["seconds"] for point in points),
                "error": median(point["error"] for point in points),
                "kept": [median(units) for units in zip(*(point["kept"] for point in points), strict=True)],
            }
        )
    return timeline


def pruning_history(rows: Sequence[dict[str, Any]], tradeoff: str) -> list[dict[str, Any]]:
    """The stages BB and DBB at one trade-off, each the median over its seeds, in the form that ``draw_kept_units`` takes."""
    timeline = []
    for method in _METHODS:
        own = [row["history"] for row in rows if (row["method"], row["tradeoff"]) == (method, tradeoff)]
        timeline += [{"stage": method.upper(), **point} for point in median_history(own)]
    return timeline


def draw_pruning_history(rows: Sequence[dict[str, Any]], tradeoff: str, places: Sequence[GatePlace], network: str, path: Path) -> None:
    """Draw units in use and error against training time, at one trade-off.

    Args:
        rows: with histories.
        tradeoff: of BB, as it is printed.
        places: of the network's gates.
        network: what to call it.
        path: of the PNG file to write.
    """
    own = [row for row in rows if row["tradeoff"] == tradeoff]
    seeds = len({row.get("seed") for row in own})
    recipe = next((row["recipe"] for row in own if row.get("recipe") not in (None, "paper")), None)
    title = f"{network}, trade-off {tradeoff}: " + (f"median of {seeds} models" if seeds > 1 else "one model")
    beside = max((row.get("side_by_side") or 1 for row in own), default=1)
    draw_kept_units(
        pruning_history(own, tradeoff),
        [place.units for place in places],
        [f"{place.controls} {place.side}" for place in places],
        path,
        title=title if recipe is None else f"{title} (recipe {recipe}, not the paper's)",
        time_label="training time, seconds" + (f" for {beside} models side by side" if beside > 1 else ""),
    )


def _what_is_wrong(row: Any, gates: int) -> str | None:
    """Why a line cannot be a row of a reproduction; None if it can."""
    if not isinstance(row, dict) or not isinstance(row.get("method"), str) or not isinstance(row.get("status"), str):
        return "is no row with a method and a status"
    if row["method"] not in _METHODS or row["status"] != "finished":
        return None
    try:
        tradeoff_value(row["tradeoff"])
    except (KeyError, AttributeError, ValueError, ZeroDivisionError):
        return "has no trade-off"
    history = row.get("history") or []
    if not isinstance(history, list) or not all(_is_point(point, gates) for point in history):
        return f"has a history without an epoch, seconds, an error or the units of {gates} gates"
    return None


def _is_point(point: Any, gates: int) -> bool:
    if not isinstance(point, dict) or not isinstance(point.get("kept"), list) or len(point["kept"]) != gates:
        return False
    numbers = [*(point.get(name) for name in ("epoch", "seconds", "error")), *point["kept"]]
    return all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers)
