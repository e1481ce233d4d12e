"""How a network lost its units in a reproduction: BB first, then DBB, the median over seeds."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bayesprune.experiments.rows import Look, ResultRow
from bayesprune.models.zoo import gate_places
from bayesprune.report.comparison.points import median_kept
from bayesprune.report.comparison.results import PAPER, tradeoff_order
from bayesprune.report.figures.kept_units import draw_kept_units

_METHODS = ("bb", "dbb")
_USUAL = "1"


def shown_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The BB and DBB rows with a history that are shown.

    They are all of one recipe, the paper's if it is there, and at one trade-off: 1, or else the smallest that BB has.
    """
    looked_at = [row for row in rows if row.method in _METHODS and row.history]
    recipes = [row.recipe for row in looked_at]
    recipe = PAPER if PAPER in recipes else next(iter(recipes), None)
    tradeoffs = {row.tradeoff for row in looked_at if row.method == "bb" and row.recipe == recipe}
    tradeoff = _USUAL if _USUAL in tradeoffs else min(tradeoffs, key=tradeoff_order, default=None)
    return [row for row in looked_at if (row.recipe, row.tradeoff) == (recipe, tradeoff)]


def median_history(histories: Sequence[Sequence[Look]]) -> list[Look]:
    """The median of several models' histories, number by number, at the epochs that all of them have."""
    by_epoch = [{look.epoch: look for look in history} for history in histories]
    common = sorted(set.intersection(*(set(looks) for looks in by_epoch))) if by_epoch else []
    return [_median_look([looks[epoch] for looks in by_epoch]) for epoch in common]


def pruning_history(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """The stages BB and DBB, each the median over its rows, in the form that ``draw_kept_units`` takes."""
    timeline = []
    for method in _METHODS:
        looks = median_history([row.history for row in rows if row.method == method])
        timeline += [{"stage": method.upper(), **asdict(look)} for look in looks]
    return timeline


def draw_pruning_history(rows: Sequence[ResultRow], path: Path) -> bool:
    """Draw units in use and error against training time.

    Args:
        rows: of one network and data set.
        path: of the PNG file to write.

    Returns:
        Whether there was a history to draw.
    """
    shown = shown_rows(rows)
    if not shown:
        return False
    first, places = shown[0], gate_places(shown[0].network)
    seeds, beside = len({row.seed for row in shown}), max(row.side_by_side for row in shown)
    models = f"median of {seeds} models" if seeds > 1 else "one model"
    foreign = "" if first.recipe == PAPER else f" (recipe {first.recipe}, not the paper's)"
    draw_kept_units(
        pruning_history(shown),
        [place.units for place in places],
        [f"{place.controls} {place.side}" for place in places],
        path,
        title=f"{first.network} on {first.dataset}, trade-off {first.tradeoff}: {models}{foreign}",
        time_label="training time, seconds" + (f" for {beside} models side by side" if beside > 1 else ""),
    )
    return True


def _median_look(looks: Sequence[Look]) -> Look:
    """Number by number; units are rounded down, as in the tables."""
    kept = tuple(map(float, median_kept([look.kept for look in looks])))
    return Look(looks[0].epoch, median(look.seconds for look in looks), median(look.error for look in looks), kept)
