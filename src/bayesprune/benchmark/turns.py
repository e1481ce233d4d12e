"""Timing several calls fairly: they take turns, so that a machine that slows down slows all of them alike."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from bayesprune.benchmark.result import Timing
from bayesprune.benchmark.runtimes import Run

TURNS = 10
"""Into how many turns the time of a contender is divided, at least."""


@dataclass
class Contender:
    """A model in a runtime, ready to run on its device, and how long its calls took."""

    model: str
    runtime: str
    run: Run
    device: torch.device
    nanoseconds: list[int] = field(default_factory=list)

    def call_timed(self) -> None:
        """One call, from its start until its result is there."""
        started = time.perf_counter_ns()
        self.run()
        wait_for(self.device)
        self.nanoseconds.append(time.perf_counter_ns() - started)

    def take_turn(self, seconds: float) -> None:
        """Timed calls for so long, at least one, after one that does not count: the caches still hold somebody else's data."""
        self.run()
        wait_for(self.device)
        end = time.perf_counter() + seconds
        self.call_timed()
        while time.perf_counter() < end:
            self.call_timed()

    def share_done(self, seconds: float, repetitions: int) -> float:
        """How much of the wanted time and number of calls it has had, at most 1."""
        of_time = sum(self.nanoseconds) / 1e9 / seconds if seconds > 0 else 1.0
        return min(1.0, of_time, len(self.nanoseconds) / repetitions)

    def timing(self, batch_size: int, threads: int) -> Timing:
        """Median and deciles."""
        milliseconds = [duration / 1e6 for duration in self.nanoseconds]
        deciles = statistics.quantiles(milliseconds, n=10, method="inclusive") if len(milliseconds) > 1 else milliseconds
        return Timing(
            model=self.model,
            runtime=self.runtime,
            batch_size=batch_size,
            median_ms=statistics.median(milliseconds),
            p10_ms=deciles[0],
            p90_ms=deciles[-1],
            repetitions=len(milliseconds),
            threads=threads,
            device=str(self.device),
        )


def take_turns(contenders: Sequence[Contender], seconds: float, repetitions: int) -> Iterator[float]:
    """Rounds of turns, every other one in reverse order, until all have had enough; after each, the share that is done."""
    order = list(contenders)
    share = 0.0
    while share < 1.0:
        with torch.inference_mode():
            for contender in order:
                contender.take_turn(seconds / TURNS)
        order.reverse()
        share = min(contender.share_done(seconds, repetitions) for contender in contenders)
        yield share


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was asked to do; a processor has, when a call returns."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
