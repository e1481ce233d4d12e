"""The objective of a step as one program for a processor."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesprune.errors import BayespruneError, BayespruneWarning, first_line

_COMPILATIONS = 10_000
_GAIN = 0.5
"""The part of a plain step's time that a compiled one saves, at least: one of a thin LeNet-500-300 saves 60 to 70 %."""
_TO_COMPILE = 60.0
"""Seconds that compiling takes, about."""
_SHORT = 0.05
"""Seconds of a plain step for each of the models side by side. A longer one is taken up by convolutions, which a compiler leaves as they
are: VGG-like gains nothing, and models with convolutions side by side become slower."""


def gains_from_compiling(step: float, models: int, to_come: float) -> bool:
    """Whether compiling makes training on a processor faster.

    Args:
        step: seconds that a plain step takes.
        models: how many are trained side by side in it.
        to_come: seconds that the plain steps to come take.
    """
    return step < _SHORT * models and _GAIN * to_come > _TO_COMPILE


def compiler_settings() -> Any:
    """Of torch's compiler while a step is compiled: narrower models, and other networks, are compiled anew each, as often as need be."""
    return torch._dynamo.config.patch(recompile_limit=_COMPILATIONS, accumulated_recompile_limit=_COMPILATIONS)


class CompiledObjective:
    """An objective that is compiled for full batches, shown once or twice; for others, and where that fails, it is as it was.

    Args:
        plainly: the objective of all members, of inputs, targets and weights, all with a leading dimension for the members.
        batch_size: of a full batch.
    """

    def __init__(self, plainly: Callable[..., Tensor], batch_size: int) -> None:
        self.plainly, self.sizes = plainly, (batch_size, 2 * batch_size)
        self.compiled: Callable[..., Tensor] | None = torch.compile(plainly, dynamic=False, fullgraph=True)
        self.seconds_to_set_up = 0.0
        self._known: set[int] = set()

    def __call__(self, inputs: Tensor, *others: Tensor) -> Tensor:
        size = inputs.shape[1]
        if self.compiled is None or size not in self.sizes:
            return self.plainly(inputs, *others)
        return self.compiled(inputs, *others) if size in self._known else self._first(self.compiled, size, inputs, *others)

    def _first(self, compiled: Callable[..., Tensor], size: int, *arguments: Tensor) -> Tensor:
        """The first call with batches of a size. A model may look at its values on the way, and a compiler may be missing or give up."""
        started = time.perf_counter()
        try:
            # The way back is compiled at once too, so that nothing is left that can fail in the midst of a step.
            with compiler_settings(), torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                result = compiled(*arguments)
        except BayespruneError:
            raise
        except Exception as error:  # noqa: BLE001  Compilers raise whatever they like.
            warnings.warn(f"the step cannot be compiled, which makes training slower: {first_line(error)}", BayespruneWarning, stacklevel=2)
            self.compiled = None
            return self.plainly(*arguments)
        self._known.add(size)
        self.seconds_to_set_up += time.perf_counter() - started
        return result
