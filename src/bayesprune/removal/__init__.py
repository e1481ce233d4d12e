"""Exact removal: whatever the zeros in a network's weights make superfluous is taken out, and nothing changes."""

from bayesprune.removal.analysis import Analysis
from bayesprune.removal.shrink import analyse, shrink

__all__ = ["Analysis", "analyse", "shrink"]
