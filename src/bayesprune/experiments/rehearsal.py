"""Programs compiled ahead: while a fleet is trained on a GPU, another process trains the next one for a moment.

A compiler keeps on disk what it has made, so the next fleet finds its program there instead of waiting for it. Nothing else comes of a
rehearsal: if it fails, the fleet compiles for itself.
"""

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bayesprune.experiments.fleets import Fleets
from bayesprune.experiments.main_job import RunConfig, data_of
from bayesprune.experiments.protocol import Fleet, Protocol
from bayesprune.training.plan import DENSE
from bayesprune.training.sources import first_inputs
from bayesprune.training.stages import put_gates_in, run_stages
from bayesprune.training.store import NoStore
from bayesprune.training.watching import Silent, Watcher

_BATCHES, _TEST_IMAGES = 10, 100
_PATIENCE = 300.0
"""Seconds after which a rehearsal is given up."""
_SPARE = 2 * 1024**3
"""Bytes that a second process needs on a GPU beside its models."""


@dataclass(frozen=True)
class Rehearsal:
    """What another process is asked to do.

    Attributes:
        protocol: that the fleet is part of.
        common: the settings that all models share.
        device: where the fleet will be trained.
        fleet: that is to be rehearsed.
        method: of the stage.
    """

    protocol: Protocol
    common: RunConfig
    device: str
    fleet: Fleet
    method: str

    def start(self) -> subprocess.Popen[bytes]:
        """Rehearse in another process, without a word."""
        command = [sys.executable, "-m", "bayesprune.experiments.rehearsal"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            pickle.dump(self, process.stdin)
        return process

    def carry_out(self) -> None:
        """Train the fleet for one short epoch, from networks that have learned nothing."""
        recipe = self.protocol.recipe.with_epochs(1)
        short = replace(self.protocol, recipe=recipe, images=(_BATCHES * recipe.batch_size, _TEST_IMAGES))
        fleets = Fleets(short, self.common, data_of(self.common), torch.device(self.device), Path(), None, None, lambda *_: Silent())
        models = [fleets.network(seed) for _, seed in self.fleet.members]
        if self.method == "dbb":
            below, example = [fleets.plan("bb", *member) for member in self.fleet.members], first_inputs(fleets.training)
            models = [put_gates_in(model, plan, example) for model, plan in zip(models, below, strict=True)]
        plans = [fleets.plan(self.method, *member) for member in self.fleet.members]
        run_stages(models, plans, fleets.training, fleets.test, F.cross_entropy, NoStore(), Silent())


class Rehearsals:
    """Has stages rehearsed on a GPU while the ones before them are trained.

    Args:
        protocol: that the fleets are part of.
        common: the settings that all models share.
        device: where they are trained; on a processor nothing is rehearsed: its cores are at work.
        fleets: in the order in which they are trained.
        watcher: is told of progress.
    """

    def __init__(self, protocol: Protocol, common: RunConfig, device: torch.device, fleets: Sequence[Fleet], watcher: Watcher) -> None:
        self.protocol, self.common, self.device, self.watcher = protocol, common, device, watcher
        self.stages = [(fleet, method) for fleet in fleets for method in fleet.methods if method != DENSE]
        self.compiled: set[tuple[str, int]] = set()
        """What there are programs for: a method, and how many models are trained side by side."""
        self.process: subprocess.Popen[bytes] | None = None

    def watch(self, fleet: Fleet, method: str) -> Watcher:
        """Who is to be told of this stage, which begins now. After its first epoch, the next that has another program is rehearsed."""
        self._wait()
        if (fleet, method) in self.stages:
            self.stages = self.stages[self.stages.index((fleet, method)) + 1 :]
        return _Starting(self.watcher, partial(self._go_on, _program(fleet, method)))

    def close(self) -> None:
        """Give up what is still being rehearsed."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _go_on(self, compiled: tuple[str, int]) -> None:
        """Rehearse what comes next, now that there is a program for a stage."""
        self.compiled.add(compiled)
        following = next((stage for stage in self.stages if _program(*stage) not in self.compiled), None)
        if following is not None:
            self._start(*following)

    def _start(self, fleet: Fleet, method: str) -> None:
        if self.device.type == "cuda" and _has_room(self.device):
            self.compiled.add(_program(fleet, method))
            with suppress(OSError):  # There may be no more processes.
                self.process = Rehearsal(self.protocol, self.common, str(self.device), fleet, method).start()

    def _wait(self) -> None:
        """Let a rehearsal come to its end, in good time: its stage is about to begin."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE)
            self.close()


class _Starting:
    """Tells a watcher everything, and starts something after the first epoch."""

    def __init__(self, watcher: Watcher, start: Callable[[], None]) -> None:
        self.watcher, self.start, self.started = watcher, start, False
        self.say, self.step = watcher.say, watcher.step
        self.stage_started, self.stage_finished = watcher.stage_started, watcher.stage_finished

    def epoch_finished(self, row: dict[str, Any]) -> None:
        self.watcher.epoch_finished(row)
        if not self.started:
            self.started = True
            self.start()


def _program(fleet: Fleet, method: str) -> tuple[str, int]:
    return method, len(fleet.members)


def _has_room(device: torch.device) -> bool:
    """Whether a second process may use as much of a GPU's memory as this one does."""
    return torch.cuda.mem_get_info(device)[0] > torch.cuda.max_memory_reserved(device) + _SPARE


def main() -> None:
    """Carry out what the standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Who asked for it gives it up.
    rehearsal = pickle.load(sys.stdin.buffer)
    assert isinstance(rehearsal, Rehearsal)
    rehearsal.carry_out()


if __name__ == "__main__":
    from bayesprune.experiments import rehearsal as imported  # The class under its own name, as it was pickled.

    imported.main()
