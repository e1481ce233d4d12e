"""How long the ways to compute a layer take, and which to take for an input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bayesprune.adaptive.ways import FUSED, WHOLE, Way


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
        ways: each over the units that any input needs, the fused way over those of all inputs added up; a whole product takes the same
            time for all.
        native: the same by native code, over the units of all inputs added up; with all that it does besides.
        besides: that, without native code: the mask, and what is done with the layer's result.
    """

    batch: int
    full: float
    look: float
    ways: Mapping[Way, Line] = field(default_factory=dict)
    native: Line | None = None
    besides: float = 0.0

    def way_for(self, union: int, total: int | None = None) -> Way | None:
        """The fastest way, if so many units are needed by any input, and so many by all added up; None for the layer as a whole."""
        return self._fastest(union, union if total is None else total)[1]

    def leaves_out(self, union: int) -> bool:
        """Whether the fastest way for one input leaves out the units that it does not need."""
        return self.way_for(union) not in (None, WHOLE)

    @property
    def _of_all(self) -> float:
        """The layer from all units, in the faster way."""
        return min([self.full, *(line.start for way, line in self.ways.items() if way == WHOLE)])

    def expected(self, union: int, total: int) -> float:
        """Seconds if the fastest way is chosen for every batch."""
        return self.look + self._fastest(union, total)[0]

    def _fastest(self, union: int, total: int) -> tuple[float, Way | None]:
        fastest: tuple[float, Way | None] = (self.full, None)
        for way, line in self.ways.items():
            seconds = line.at(total if way == FUSED else union)
            if seconds < fastest[0]:
                fastest = seconds, way
        return fastest

    @property
    def _of_groups(self) -> dict[Way, Line]:
        """The ways that groups of inputs can take."""
        return {way: line for way, line in self.ways.items() if way not in (FUSED, WHOLE)}

    def groups_could_pay(self, total: int) -> bool:
        """Whether groups are worth looking for, if inputs need so many units added up: two without a unit too many must be faster."""
        return any(2 * line.start + line.slope * total / self.batch < self._of_all for line in self._of_groups.values())

    @property
    def most_groups(self) -> float:
        """Beyond so many, the calls alone take longer than the layer as a whole."""
        return self._of_all / max(min((line.start for line in self._of_groups.values()), default=float("inf")), 1e-9)

    def way_of_group(self, inputs: int, units: int) -> tuple[float, Way]:
        """Seconds for a group of so many inputs that need so many units, and the way that takes them."""
        return min((line.start + line.slope * units * inputs / self.batch, way) for way, line in self._of_groups.items())

    def groups_pay(self, groups: Sequence[tuple[int, int]]) -> bool:
        """Whether it is faster to compute groups of so many inputs, with so many units each, one after the other."""
        return bool(self._of_groups) and sum(self.way_of_group(*group)[0] for group in groups) < self._of_all
