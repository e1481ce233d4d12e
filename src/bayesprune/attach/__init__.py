"""Putting gates into a model: where they go, how they are hooked on, and the step from BB to DBB."""

from bayesprune.attach.dependent import make_dependent
from bayesprune.attach.placement import Placement, placement
from bayesprune.attach.sparsify import sparsify

__all__ = ["Placement", "make_dependent", "placement", "sparsify"]
