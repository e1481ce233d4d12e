"""``shrink``: the smallest network that the zeros in the weights allow."""

from torch import fx

from bayesprune.removal.analysis import Analysis
from bayesprune.removal.rebuild import CannotRemove, Rebuild


def shrink(module: fx.GraphModule, rigid: frozenset[fx.Node] = frozenset()) -> tuple[fx.GraphModule, Analysis]:
    """A smaller graph that computes the same, and the analysis it rests on.

    A node that turns out to need its whole inputs is taken as a black box, and the rest is done again.
    """
    while True:
        analysis = Analysis(module, rigid).run()
        try:
            return Rebuild(analysis).run(), analysis
        except CannotRemove as obstacle:
            if obstacle.node in rigid:
                raise
            rigid = rigid | {obstacle.node}
