"""What was chosen for batches of a size, and why, for people."""

from dataclasses import dataclass

from bayesprune.adaptive.segments import Unused
from bayesprune.text_table import text_table


@dataclass(frozen=True)
class PlannedLayer:
    """What is expected of a layer.

    Attributes:
        name: of the layer.
        units: that it could read.
        needed: by an input of the example, on average.
        way: what most batches of the example would take: ``full``, or one of ``ways.py``.
        full_us: microseconds for the layer as a whole.
        expected_us: microseconds on average, if every batch takes its fastest way, finding out which one included.
    """

    name: str
    units: int
    needed: float
    way: str
    full_us: float
    expected_us: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Of a table."""
        times = (f"{self.full_us:.1f} us", f"{self.expected_us:.1f} us")
        return (self.name, str(self.units), f"{self.needed:.1f}", self.way, *times)


@dataclass(frozen=True)
class ExecutionPlan:
    """What is done with batches of a size. Prints as a table.

    Attributes:
        batch: the size of the batches.
        layers: those behind masks, and convolutions that native code computes as a whole.
        unused: masks that no layer gains from, and why.
        compacted_us: microseconds that the compacted network takes for a batch of the example, without what a call need not do again.
        adaptive_us: microseconds that it takes with the layers' own ways; None where no layer gains.
    """

    batch: int
    layers: tuple[PlannedLayer, ...]
    unused: tuple[Unused, ...]
    compacted_us: float
    adaptive_us: float | None

    @property
    def adaptive(self) -> bool:
        """Whether anything is gained by computing layers in other ways than the compacted network does."""
        return self.adaptive_us is not None and self.adaptive_us < self.compacted_us

    def __str__(self) -> str:
        table = [("layer", "units", "needed", "way", "in full", "expected"), *(each.cells for each in self.layers)]
        lines = [text_table(table, "<>><>>")]
        lines += [f"what the mask behind {each.behind} leaves out is computed all the same: {each.reason}" for each in self.unused]
        if self.adaptive_us is None:
            lines.append(f"batches of {self.batch} run as in the compacted network, {self.compacted_us:.0f} us: no layer gains")
        else:
            outcome = "" if self.adaptive else ", so the compacted one is used"
            lines.append(
                f"batches of {self.batch}: {self.adaptive_us:.0f} us, as in the compacted network {self.compacted_us:.0f} us{outcome}"
            )
        return "\n".join(lines)
