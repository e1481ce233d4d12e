"""Physical removal of pruned units: gates into weights, zeros out of the network, and the evidence that nothing changed."""

from bayesprune.compact.certificate import Certificate, GateOutcome
from bayesprune.compact.compaction import Compaction, compact

__all__ = ["Certificate", "Compaction", "GateOutcome", "compact"]
