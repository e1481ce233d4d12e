"""For batches of which sizes the graph of a model holds whose code has branches for small or large ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from bayesprune.example_inputs import ExampleInputs, batch_size, with_batch_size
from bayesprune.graph.other_sizes import Trial, run_trial
from bayesprune.graph.size_limits import numel

_MANY, _MANY_ELEMENTS = 33, 2**17
"""A large batch, and how many numbers it may hold; up to that size, twice the example's is tried whatever it holds."""


@dataclass(frozen=True)
class BatchLimits:
    """Which batches a graph is for.

    Attributes:
        least: how many inputs, at least.
        below: fewer than so many inputs, if that is known.
    """

    least: int = 1
    below: int | None = None

    def admit(self, size: int) -> bool:
        """Whether the graph is for batches of this size."""
        return self.least <= size and (self.below is None or size < self.below)

    def __str__(self) -> str:
        """What to know about them; empty where batches may be any."""
        if self == SINGLE:
            return "for single inputs"
        known = [f"for batches of at least {self.least} inputs"] * (self.least > 1)
        known += [f"not for large batches, such as of {self.below} inputs"] * (self.below is not None)
        return " and ".join(known)


def batch_limits(model: nn.Module, example_inputs: ExampleInputs, follows: Callable[[Sequence[Trial]], bool]) -> BatchLimits:
    """Try a single input, and a large batch.

    Args:
        model: what the graph was made of.
        example_inputs: what the graph was made for.
        follows: whether the graph computes in these trials what the model does.
    """
    now = batch_size(example_inputs)
    affordable = _MANY_ELEMENTS * now // max(numel(example_inputs), 1)
    large = max(min(2 * now, _MANY), min(_MANY, affordable))

    def holds(size: int) -> bool:
        trial = run_trial(model, with_batch_size(example_inputs, size))
        return trial is None or follows([trial])

    return BatchLimits(1 if now == 1 or holds(1) else 2, None if large <= now or holds(large) else large)


SINGLE = BatchLimits(1, 2)
"""One input at a time."""
