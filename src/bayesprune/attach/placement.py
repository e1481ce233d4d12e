"""``placement``: what is gated in a model, and what is left alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from bayesprune.gates import Gate, require_gates, unwrapped
from bayesprune.models.description import LeftAlone
from bayesprune.text_table import text_table

_LEFT_ALONE = "_layers_left_alone"


@dataclass(frozen=True)
class GateRow:
    """One gate: its name, method and units, and what they control."""

    gate: str
    method: str
    units: int
    controls: str


@dataclass(frozen=True)
class Placement:
    """All gates of a model in network order, and the layers without one. Prints as a table."""

    gates: tuple[GateRow, ...]
    left_alone: tuple[LeftAlone, ...]

    def __str__(self) -> str:
        header = ("gate", "method", "units", "controls")
        rows = [header, *((row.gate, row.method, str(row.units), row.controls) for row in self.gates)]
        lines = [text_table(rows, "<<<<")]
        lines += [f"left alone: {row.layer or '(the model)'}: {row.reason}" for row in self.left_alone]
        return "\n".join(lines)


def placement(gated: nn.Module) -> Placement:
    """Each gate of a model and what it controls; each layer left alone and why."""
    gated, found = unwrapped(gated), require_gates(gated)
    paths = {id(module): path for path, module in gated.named_modules()}
    rows = tuple(GateRow(name, gate.method, gate.num_units, _controls(gate, paths)) for name, gate in found.items())
    return Placement(rows, left_alone_in(gated))


def remember_left_alone(gated: nn.Module, left_alone: Sequence[LeftAlone]) -> None:
    """Write down in the model itself which of its layers got no gate."""
    gated.__dict__[_LEFT_ALONE] = tuple(left_alone)


def left_alone_in(gated: nn.Module) -> tuple[LeftAlone, ...]:
    """The layers that got no gate when the gates were put in."""
    return tuple(gated.__dict__.get(_LEFT_ALONE, ()))


def _controls(gate: Gate, paths: dict[int, str]) -> str:
    return ", ".join(f"{each.side} of {paths.get(id(each.layer), '?') or 'the model'}" for each in gate.controlled)
