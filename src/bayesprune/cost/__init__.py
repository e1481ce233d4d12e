"""What a network costs, in two conventions that are kept apart: the paper's (`paper_cost`) and the ordinary one (`plain_cost`)."""

from bayesprune.cost.counts import gate_units
from bayesprune.cost.paper import PaperCost, RelativeCost, paper_cost, relative_cost
from bayesprune.cost.plain import PlainCost, plain_cost

__all__ = ["PaperCost", "PlainCost", "RelativeCost", "gate_units", "paper_cost", "plain_cost", "relative_cost"]
