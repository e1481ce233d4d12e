"""``benchmark_per_input``: how long each single input takes, where networks do not do the same for all of them."""

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.adaptive import AdaptiveModel
from bayesprune.adaptive.work import count_work
from bayesprune.benchmark.latency import named_models, progress_bar, with_threads
from bayesprune.benchmark.result import machine_facts
from bayesprune.benchmark.turns import wait_for
from bayesprune.cost import cost
from bayesprune.errors import InputError
from bayesprune.example_inputs import call
from bayesprune.prediction import evaluating
from bayesprune.text_table import text_table

_ROUNDS = 3
_WARM_UPS = 5
_AT_A_TIME = 500


@dataclass(frozen=True)
class PerInput:
    """What each input cost a network.

    Attributes:
        model: its name.
        milliseconds: the least of some calls, input by input.
        macs: multiply-accumulates that were executed, input by input.
        error: inputs in percent whose greatest score is not that of their label; None without labels.
    """

    model: str
    milliseconds: tuple[float, ...]
    macs: tuple[int, ...]
    error: float | None

    def row(self) -> dict[str, Any]:
        """In short: medians and quantiles."""
        times, work = (_quantiles(values) for values in (self.milliseconds, self.macs))
        return {
            "model": self.model,
            "inputs": len(self.milliseconds),
            "median_ms": times[50],
            "p5_ms": times[5],
            "p95_ms": times[95],
            "macs_mean": statistics.fmean(self.macs),
            "macs_p5": work[5],
            "macs_median": work[50],
            "macs_p95": work[95],
            "error": self.error,
        }


@dataclass(frozen=True)
class PerInputBenchmark:
    """Networks on the same inputs, one by one. Prints as a table.

    Attributes:
        models: in the order in which they were given; speed-ups are stated against the first.
        threads: processor threads that an operator may use.
        facts: versions, and the names of processor and device.
    """

    models: tuple[PerInput, ...]
    threads: int
    facts: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """Plain dictionaries, one for each network and with the facts in each: lines of a JSONL file."""
        first = statistics.median(self.models[0].milliseconds)
        return [
            {**row, "speedup": first / row["median_ms"], "baseline": self.models[0].model, "threads": self.threads, **self.facts}
            for row in (each.row() for each in self.models)
        ]

    def __str__(self) -> str:
        rows = self.rows()
        labelled = rows[0]["error"] is not None
        table = [("model", "median ms", "95 % ms", f"against {rows[0]['baseline']}", "MACs", "5 % to 95 %", *["error"] * labelled)]
        for row in rows:
            spread = f"{row['macs_p5']:,.0f} to {row['macs_p95']:,.0f}" if row["macs_p5"] != row["macs_p95"] else ""
            times = (f"{row['median_ms']:.3f}", f"{row['p95_ms']:.3f}", f"{row['speedup']:.2f}x")
            error = (f"{row['error']:.2f} %",) if labelled else ()
            table.append((row["model"], *times, f"{row['macs_mean']:,.0f}", spread, *error))
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        count = rows[0]["inputs"]
        where = f"{count} input{'s' if count > 1 else ''} one by one, {self.facts['device_name']}, {threads}, torch {self.facts['torch']}"
        return text_table(table, "<>>>>>>") + "\n" + where


@torch.no_grad()
def benchmark_per_input(
    models: Mapping[str, nn.Module],
    inputs: Tensor,
    labels: Tensor | None = None,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> PerInputBenchmark:
    """Run networks on inputs one by one, in turns.

    Every input is timed some times, in rounds, and the least counts: what other programs add to a call is not the network's.

    Args:
        models: by name; all take a batch of the inputs.
        inputs: of shape (inputs, ...), on the models' device.
        labels: the class of each input.
        threads: processor threads for an operator; by default as many as torch is set to.
        progress: show a bar with the time left.

    Raises:
        InputError: there are no models or inputs, or a model does not run on them.
    """
    named = named_models(models)
    if not isinstance(inputs, Tensor) or inputs.ndim == 0 or len(inputs) == 0:
        raise InputError("inputs is a tensor whose first dimension counts the inputs, at least one")
    if labels is not None and labels.shape != inputs.shape[:1]:
        raise InputError(f"labels has a class for each of the {len(inputs)} inputs, not the shape {list(labels.shape)}")
    best = {name: [float("inf")] * len(inputs) for name in named}
    wrong = dict.fromkeys(named, 0)
    with ExitStack() as stack:
        used = stack.enter_context(with_threads(threads))
        stack.enter_context(torch.inference_mode())
        show = stack.enter_context(progress_bar(_ROUNDS * len(inputs), progress))
        for name, model in named.items():
            stack.enter_context(evaluating(model))
            for _ in range(_WARM_UPS):
                scores = call(model, inputs[:1])
            if labels is not None and not (isinstance(scores, Tensor) and scores.ndim == 2):
                raise InputError(f"with labels a network gives scores of shape (inputs, classes); '{name}' does not")
        for turn in range(_ROUNDS):
            for number in range(len(inputs)):
                for name in list(named) if (number + turn) % 2 == 0 else reversed(list(named)):
                    seconds, scores = _timed(named[name], inputs[number : number + 1])
                    best[name][number] = min(best[name][number], 1e3 * seconds)
                    if labels is not None and turn == 0:
                        wrong[name] += int(scores.argmax(dim=1).item() != labels[number].item())
                show(turn * len(inputs) + number + 1, "inputs one by one")
    found = []
    for name, model in named.items():
        error = None if labels is None else 100.0 * wrong[name] / len(inputs)
        found.append(PerInput(name, tuple(best[name]), _macs(model, inputs), error))
    return PerInputBenchmark(tuple(found), used, machine_facts(str(inputs.device)))


def _timed(model: nn.Module, x: Tensor) -> tuple[float, Tensor]:
    """Seconds for an input, as if its mask had not been seen before, and the result."""
    if isinstance(model, AdaptiveModel):
        model.forget_masks()
    started = time.perf_counter()
    scores = model(x)
    wait_for(x.device)
    return time.perf_counter() - started, scores


def _macs(model: nn.Module, inputs: Tensor) -> tuple[int, ...]:
    if not isinstance(model, AdaptiveModel):
        return (cost(model, inputs[:2]).macs,) * len(inputs)
    return tuple(int(each) for part in inputs.split(_AT_A_TIME) for each in count_work(model, part).executed)  # type: ignore[no-untyped-call]


def _quantiles(values: tuple[float, ...]) -> dict[int, float]:
    """At 5, 50 and 95 percent."""
    cuts = statistics.quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {5: cuts[0], 50: cuts[9], 95: cuts[-1]}
