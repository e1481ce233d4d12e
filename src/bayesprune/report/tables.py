"""Tables for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

_SHOWN = 6
"""How many removals of a stage are printed; summary.json has all."""


def stage_table(summary: dict[str, Any]) -> Table:
    """A row for each stage of a run: error, kept units, xFLOPs, memory and seconds."""
    table = Table(title=f"{summary['network']} on {summary['dataset']}, {summary['method']}, recipe {summary['recipe']}")
    for heading in ("stage", "error %", "kept units", "xFLOPs", "memory %", "seconds"):
        table.add_column(heading, justify="left" if heading in ("stage", "kept units") else "right", no_wrap=True)
    for row in summary["stages"]:
        table.add_row(
            row["stage"],
            f"{row['error']:.2f}",
            join_units(row["kept"]),
            f"{row['speedup']:.2f}",
            f"{row['memory']:.2f}",
            f"{row['seconds']:.0f}",
        )
    return table


def removal_lines(summary: dict[str, Any]) -> list[str]:
    """What was taken out of the network while it was trained, and when: a line for each stage."""
    lines = []
    for row in summary["stages"]:
        steps = [f"{join_units(removal['left'])} {_when(removal['epoch'])}" for removal in row.get("removals", [])]
        if steps:
            shown = steps if len(steps) <= _SHOWN else [*steps[: _SHOWN - 1], f"… {steps[-1]}"]
            lines.append(f"units of the network that is trained, {row['stage']}: {', '.join(shown)}")
    return lines


def _when(epoch: int) -> str:
    return f"after epoch {epoch}" if epoch else "from the start"


def latency_lines(summary: dict[str, Any]) -> list[str]:
    """What was measured of the compacted network, beside what was counted: a line for each batch size."""
    return [
        f"measured at batch {timing['batch_size']}: {timing['compacted']:.3f} ms, dense {timing['dense']:.3f} ms, "
        f"{timing['faster']:.2f}x as fast (xFLOPs {row['speedup']:.2f})"
        for row in summary["stages"]
        for timing in row.get("latency", [])
    ]


def join_units(kept: Sequence[float]) -> str:
    """Units as the paper prints them, 784-500-300; long networks are shortened in the middle."""
    parts = [f"{units:.0f}" for units in kept]
    return "-".join(parts if len(parts) <= 6 else [*parts[:3], "…", *parts[-2:]])
