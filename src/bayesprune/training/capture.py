"""An epoch as one program on the GPU: a step is compiled, captured once and replayed, with data and schedules on the device."""

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from bayesprune.data.batches import EpochPlan, TensorBatches
from bayesprune.errors import BayespruneError, BayespruneWarning, first_line
from bayesprune.training.compilation import compiler_settings
from bayesprune.training.convolutions import as_products
from bayesprune.training.step import Step

_WARM_UPS = 3


def captured_epoch(step: Step, source: TensorBatches, plan: EpochPlan) -> "CapturedEpoch | None":
    """An epoch as one program: compiled, or as it is where there is no compiler; None where it cannot be captured either.

    A model may look at its values on the way, and a compiler may be missing or give up. Training is slower then, and says so.
    """
    for compiled in (True, False):
        try:
            return CapturedEpoch(step, source, plan, compiled)
        except (torch.cuda.OutOfMemoryError, BayespruneError):
            raise
        except Exception as error:  # noqa: BLE001  Compilers and drivers raise whatever they like.
            what = "compiled" if compiled else "captured as a CUDA graph"
            warnings.warn(f"the step cannot be {what}, which makes training slower: {first_line(error)}", BayespruneWarning, stacklevel=2)
    return None


class CapturedEpoch:
    """Replays a captured step for every full batch of an epoch.

    Args:
        step: what to replay.
        source: whose data lie on the GPU.
        plan: of any epoch, for its shapes.
        compiled: whether to compile the step first.
    """

    def __init__(self, step: Step, source: TensorBatches, plan: EpochPlan, compiled: bool = True) -> None:
        self.step, self.source = step, source
        self.plan = plan.to(source.device)
        self.offsets = torch.arange(source.batch_size, device=source.device)
        self.full_steps = source.n_data // source.batch_size
        self.plainly = step.objective
        started = time.perf_counter()
        if compiled:
            step.objective = torch.compile(step.objective, dynamic=False, fullgraph=True)
        try:
            with compiler_settings():
                self.graph = self._captured()
        except BaseException:
            step.objective = self.plainly
            raise
        self.seconds_to_set_up = time.perf_counter() - started

    def run(self, plan: EpochPlan, pause_at: int, pause: Callable[[], None]) -> None:
        """Queue all steps of an epoch. They are done when the device is waited for.

        Args:
            plan: of the epoch.
            pause_at: a step.
            pause: called before that step.
        """
        self.plan.copy_(plan)
        for step in range(self.full_steps):
            if step == pause_at:
                pause()
            self.graph.replay()
        rest = torch.arange(self.full_steps * self.source.batch_size, self.source.n_data, device=self.source.device)
        if len(rest):
            self.step.objective, compiled = self.plainly, self.step.objective
            self._step(rest)
            self.step.objective = compiled

    def _step(self, positions: Tensor) -> None:
        self.step.update(self.step.losses(*self.source.planned(self.plan, positions)))

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a graph. Warming up trains, so everything it changes is put back."""
        members = self.step.members
        before = {name: tensor.detach().clone() for name, tensor in self._state().items()}
        try:
            with nullcontext() if members.alone else as_products(members.first):
                return self._recorded()
        finally:
            with torch.no_grad():
                for name, tensor in self._state().items():
                    tensor.copy_(before[name]) if name in before else tensor.zero_()  # Moments that did not exist start at zero.

    def _recorded(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._step(self._positions())
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self._positions())
        return graph

    def _positions(self) -> Tensor:
        return self.step.position * self.source.batch_size + self.offsets

    def _state(self) -> dict[str, Tensor]:
        """All that a step changes, by name."""
        members, step = self.step.members, self.step
        state = {f"parameter {name}": tensor for name, tensor in members.parameters.items()}
        state |= {f"buffer {name}": tensor for name, tensor in members.buffers.items()}
        for name, parameter in members.parameters.items():
            state |= {f"{key} of {name}": tensor for key, tensor in step.optimizer.state.get(parameter, {}).items()}
        return state | {"position": step.position, "total": step.total}
