"""``summary``: where a gated model stands, in any training loop."""

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from bayesprune.compact import compact
from bayesprune.cost import CostReduction, RelativeCost, relative_cost
from bayesprune.errors import BayespruneWarning
from bayesprune.example_inputs import ExampleInputs
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
        reduction: from what the model costs to what ``compact`` would leave now, where an example was given.
    """

    gates: tuple[GateSummary, ...]
    cost: RelativeCost | None
    reduction: CostReduction | None = None

    @property
    def units(self) -> int:
        """Of all gates."""
        return sum(gate.units for gate in self.gates)

    @property
    def kept(self) -> int:
        """Units that are kept, of all gates."""
        return sum(gate.kept for gate in self.gates)

    @property
    def kl(self) -> float:
        """The divergence of all gates, in nats."""
        return sum(gate.kl for gate in self.gates)

    def __str__(self) -> str:
        rows = [("gate", "units kept", "KL divergence in nats")]
        rows += [(gate.name, f"{gate.kept} of {gate.units}", f"{gate.kl:,.1f}") for gate in self.gates]
        rows.append(("all gates", f"{self.kept} of {self.units}", f"{self.kl:,.1f}"))
        lines = [text_table(rows, "<>>")]
        if self.cost is not None:
            cost = f"{self.cost.speedup:.2f}x fewer FLOPs, {self.cost.memory_percent:.2f} % of the memory"
            lines.append(f"without the pruned units: {cost} (the paper's convention)")
        if self.reduction is not None:
            lines.append(f"without the pruned units: {self.reduction}")
        return "\n".join(lines)


def summary(gated: nn.Module, example_inputs: ExampleInputs | None = None) -> Summary:
    """Units kept, divergence and cost of a gated model as it is now, which it stays.

    Args:
        gated: a model with gates.
        example_inputs: with which to find out what any model would cost without its pruned units, as ``compact`` does: a tensor, a tuple
            of positional arguments or a mapping of keyword arguments. Following a large model takes seconds.

    Raises:
        InputError: the model has no gates, or does not run on the example.

    Example:
        >>> print(summary(gated))
        >>> print(summary(gated, x).reduction.macs)
    """
    gated = unwrapped(gated)
    with torch.no_grad():
        rows = tuple(
            GateSummary(name, gate.num_units, int(gate.keep().sum()), float(gate.kl())) for name, gate in require_gates(gated).items()
        )
    cost = None
    if isinstance(gated, DescribedModel) and len(rows) == len(gated.gate_places()):
        cost = relative_cost(gated.layers(), [row.kept for row in rows])
    return Summary(rows, cost, None if example_inputs is None else _reduction(gated, example_inputs))


def _reduction(gated: nn.Module, example_inputs: ExampleInputs) -> CostReduction:
    """What removal would change now; that it would be nothing, or too much, is what the table shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayespruneWarning)
        certificate = compact(gated, example_inputs).certificate
    return certificate.after.relative_to(certificate.before)
