"""How long the ways to compute a layer take, and which to take for an input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bayesprune.adaptive.ways import FUSED, GATHER, Way


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over the number of units.

    Attributes:
        start: without any.
        slope: for each.
    """

    start: float
    slope: float

    def at(self, units: float) -> float:
        return self.start + self.slope * units

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> "Line":
        """The line of least squares, which neither falls nor begins below zero."""
        xs, ys = zip(*points, strict=True)
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        spread = sum((x - mean_x) ** 2 for x in xs)
        slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread) if spread else 0.0
        return cls(max(0.0, mean_y - slope * mean_x), slope)


@dataclass(frozen=True)
class Choice:
    """What is known about a layer and batches of one size, in seconds.

    Attributes:
        batch: the size of the batches.
        full: the layer as a whole, mask included.
        look: finding out which units are needed.
        ways: gathering over the units that any input needs, the fused way over those of all inputs added up.
    """

    batch: int
    full: float
    look: float
    ways: Mapping[Way, Line] = field(default_factory=dict)

    def way_for(self, union: int, total: int | None = None) -> Way | None:
        """The fastest way, if so many units are needed by any input, and so many by all added up; None for the layer as a whole."""
        fastest, way = self.full, None
        if GATHER in self.ways and (seconds := self.ways[GATHER].at(union)) < fastest:
            fastest, way = seconds, GATHER
        if FUSED in self.ways and self.ways[FUSED].at(union if total is None else total) < fastest:
            way = FUSED
        return way

    def expected(self, union: int, total: int) -> float:
        """Seconds if the fastest way is chosen for every batch."""
        way = self.way_for(union, total)
        return self.look + (self.full if way is None else self.ways[way].at(total if way == FUSED else union))

    def groups_could_pay(self, total: int) -> bool:
        """Whether groups are worth looking for, if inputs need so many units added up: two without a unit too many must be faster."""
        return GATHER in self.ways and 2 * self.ways[GATHER].start + self.ways[GATHER].slope * total / self.batch < self.full

    @property
    def most_groups(self) -> float:
        """Beyond so many, the calls alone take longer than the layer as a whole."""
        return self.full / max(self.ways[GATHER].start, 1e-9) if GATHER in self.ways else 0.0

    def groups_pay(self, groups: Sequence[tuple[int, int]]) -> bool:
        """Whether it is faster to compute groups of so many inputs, with so many units each, one after the other."""
        if GATHER not in self.ways:
            return False
        line = self.ways[GATHER]
        return sum(line.start + line.slope * units * inputs / self.batch for inputs, units in groups) < self.full
