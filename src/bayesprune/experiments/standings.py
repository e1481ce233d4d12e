"""What a sweep has found so far: models that differ in their seed alone, in one line."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from bayesprune.experiments.main_job import RunConfig, spelled_out

Group = tuple[str, str, float | None]
"""A network, a method and a trade-off."""


def sweep_groups(rows: Sequence[dict[str, Any]]) -> dict[Group, list[dict[str, Any]]]:
    """The rows that differ in their seed alone, by network, method and trade-off."""
    groups: dict[Group, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["method"], row["tradeoff"]), []).append(row)
    return groups


@dataclass
class Standings:
    """The lines of a table that grows while a sweep runs.

    Attributes:
        expected: how many models each line will stand for.
        rows: of the models that are finished, by line, the one that changed last at the end.
    """

    expected: dict[Group, int] = field(default_factory=dict)
    rows: dict[Group, list[dict[str, Any]]] = field(default_factory=dict)

    def expect(self, members: Iterable[RunConfig]) -> None:
        """Count the models of a sweep."""
        for member in members:
            group = (member.network, member.method, spelled_out(member).tradeoff)
            self.expected[group] = self.expected.get(group, 0) + 1

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in rows of finished models."""
        for group, own in sweep_groups(rows).items():
            self.rows[group] = [*self.rows.pop(group, []), *own]

    def table(self, lines: int) -> Table | None:
        """At most so many lines, those that changed last first; None while there is nothing to show, or no space for it."""
        groups = list(self.rows.items())[::-1]
        if not groups or lines < 1:
            return None
        table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="dim")
        for heading in ("network", "method", "trade-off", "models", "error %", "xFLOPs", "memory %", "kept units"):
            left = heading in ("network", "method", "kept units")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
        for group, rows in groups[:lines]:
            network, method, tradeoff = group
            done = f"{len(rows)}/{self.expected.get(group, len(rows))}"
            table.add_row(network, method, "" if tradeoff is None else f"{tradeoff:.4g}", done, *_medians(rows))
        if len(groups) > lines:
            table.caption = f"and {len(groups) - lines} more with finished models"
        return table


def _medians(rows: Sequence[dict[str, Any]]) -> list[str]:
    sound = [row for row in rows if row["status"] == "finished"]
    if not sound:
        return ["diverged", "", "", ""]
    numbers = [f"{statistics.median(row[name] for row in sound):.2f}" for name in ("error", "speedup", "memory")]
    kept = [statistics.median(units) for units in zip(*(row["kept"] for row in sound), strict=True)]
    return [*numbers, "-".join(f"{units:.0f}" for units in kept)]
