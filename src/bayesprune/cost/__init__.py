"""What a network costs, in two conventions that are kept apart: the paper's (`paper_cost`) and the ordinary one.

The ordinary cost is computed from a description (`plain_cost`, with some units removed) or counted while any model runs (`cost`).
"""

from bayesprune.cost.counts import gate_units
from bayesprune.cost.measured import Cost, CostReduction, cost
from bayesprune.cost.paper import PaperCost, RelativeCost, paper_cost, relative_cost
from bayesprune.cost.plain import PlainCost, plain_cost
from bayesprune.example_inputs import ExampleInputs

__all__ = [
    "Cost",
    "CostReduction",
    "ExampleInputs",
    "PaperCost",
    "PlainCost",
    "RelativeCost",
    "cost",
    "gate_units",
    "paper_cost",
    "plain_cost",
    "relative_cost",
]
