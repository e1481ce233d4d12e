"""Timings as data, with the facts about the machine that they come from."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bayesprune.text_table import text_table
from bayesprune.version import __version__


@dataclass(frozen=True)
class Timing:
    """How long a model takes for a batch.

    Attributes:
        model: its name.
        runtime: what ran it: ``eager``, ``compiled`` or ``onnxruntime``.
        batch_size: inputs in the batch.
        median_ms: half of the calls took less, in milliseconds.
        p10_ms: a tenth of the calls took less.
        p90_ms: nine tenths of the calls took less.
        repetitions: calls that were timed.
        threads: processor threads that an operator may use.
        device: where the model was.
    """

    model: str
    runtime: str
    batch_size: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    repetitions: int
    threads: int
    device: str


@dataclass(frozen=True)
class Benchmark:
    """All timings of one run. Prints as a table.

    Attributes:
        timings: batch size by batch size, in the order in which models and runtimes were given.
        baseline: the model against which speed-ups are stated.
        facts: versions, and the names of processor and device.
    """

    timings: tuple[Timing, ...]
    baseline: str
    facts: Mapping[str, str]

    def speedup(self, timing: Timing) -> float:
        """How many times faster than the baseline in the same runtime with the same batch size, by medians."""
        same = (self.baseline, timing.runtime, timing.batch_size)
        reference = next(other for other in self.timings if (other.model, other.runtime, other.batch_size) == same)
        return reference.median_ms / timing.median_ms

    def rows(self) -> list[dict[str, Any]]:
        """Plain dictionaries, one for each timing and with the facts in each: lines of a JSONL file."""
        return [{**asdict(timing), "speedup": self.speedup(timing), "baseline": self.baseline, **self.facts} for timing in self.timings]

    def __str__(self) -> str:
        several = any(row.model != self.baseline for row in self.timings)
        table = [("model", "runtime", "batch", "median ms", "10 % ms", "90 % ms", "calls", *[f"against {self.baseline}"] * several)]
        for row in self.timings:
            milliseconds = (f"{row.median_ms:.3f}", f"{row.p10_ms:.3f}", f"{row.p90_ms:.3f}")
            speedup = [f"{self.speedup(row):.2f}x"] * several
            table.append((row.model, row.runtime, str(row.batch_size), *milliseconds, str(row.repetitions), *speedup))
        lines = [text_table(table, "<<>>>>>>")]
        threads = self.timings[0].threads
        lines.append(f"{self.facts['device_name']}, {threads} thread{'s' if threads > 1 else ''}, torch {self.facts['torch']}")
        return "\n".join(lines)


def machine_facts(device: str) -> dict[str, str]:
    """What a timing depends on beside the model."""
    cpu = _cpu_name()
    return {
        "cpu": cpu,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "version": __version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
