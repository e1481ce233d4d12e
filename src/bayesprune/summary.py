"""``summary``: where a gated model stands, in any training loop."""

from dataclasses import dataclass

import torch
from torch import nn

from bayesprune.cost import RelativeCost, relative_cost
from bayesprune.gates import require_gates, unwrapped
from bayesprune.models.description import DescribedModel
from bayesprune.text_table import text_table


@dataclass(frozen=True)
class GateSummary:
    """One gate: how many of its units are kept, and its divergence in nats."""

    name: str
    units: int
    kept: int
    kl: float


@dataclass(frozen=True)
class Summary:
    """The gates of a model, and what it would cost with the pruned units removed. Prints as a table.

    Attributes:
        gates: in network order.
        cost: in the paper's convention, where the model states its layers; input-dependent gates count with all units that BB kept.
    """

    gates: tuple[GateSummary, ...]
    cost: RelativeCost | None

    @property
    def units(self) -> int:
        return sum(gate.units for gate in self.gates)

    @property
    def kept(self) -> int:
        return sum(gate.kept for gate in self.gates)

    @property
    def kl(self) -> float:
        return sum(gate.kl for gate in self.gates)

    def __str__(self) -> str:
        rows = [("gate", "units kept", "KL divergence in nats")]
        rows += [(gate.name, f"{gate.kept} of {gate.units}", f"{gate.kl:,.1f}") for gate in self.gates]
        rows.append(("all gates", f"{self.kept} of {self.units}", f"{self.kl:,.1f}"))
        lines = [text_table(rows, "<>>")]
        if self.cost is not None:
            cost = f"{self.cost.speedup:.2f}x fewer FLOPs, {self.cost.memory_percent:.2f} % of the memory"
            lines.append(f"without the pruned units: {cost} (the paper's convention)")
        return "\n".join(lines)


def summary(gated: nn.Module) -> Summary:
    """Units kept, KL and cost of a gated model as it is now."""
    gated = unwrapped(gated)
    with torch.no_grad():
        rows = tuple(
            GateSummary(name, gate.num_units, int(gate.keep().sum()), float(gate.kl())) for name, gate in require_gates(gated).items()
        )
    cost = None
    if isinstance(gated, DescribedModel) and len(rows) == len(gated.gate_places()):
        cost = relative_cost(gated.layers(), [row.kept for row in rows])
    return Summary(rows, cost)
