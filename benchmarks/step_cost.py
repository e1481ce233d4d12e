"""What a training step costs with BB gates, against plain dropout at the same three places of LeNet-500-300.

Prints a table of eager and compiled steps, forward, backward and Adam, and the ratio of the best form of each. The two sides are measured
in turns, a few steps of one and then of the other, so that a busy machine slows both alike. ``--rows FILE`` appends the raw numbers.

    make bench
    .venv/bin/python benchmarks/step_cost.py --rows results/step-cost.jsonl
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.cli import as_command
from bayesprune.models import LeNet500300
from bayesprune.noise import NoiseKeys
from bayesprune.storage import append_row, make_folder

BATCH, N_DATA, TURN = 100, 60_000, 10


def with_dropout() -> nn.Module:
    """LeNet-500-300 with dropout where the gates would be."""
    network = LeNet500300()
    return nn.Sequential(nn.Dropout(0.2), network.fc1, nn.ReLU(), nn.Dropout(0.5), network.fc2, nn.ReLU(), nn.Dropout(0.5), network.fc3)


def with_gates() -> nn.Module:
    """LeNet-500-300 with BB gates."""
    return bp.sparsify(LeNet500300(), "bb")


@dataclass
class Contender:
    """One way to make a step, and how long its steps took."""

    name: str
    build: Callable[[], nn.Module]
    compiled: bool
    device: torch.device
    compile_seconds: float = 0.0
    times: list[float] = field(default_factory=list)

    def prepare(self, inputs: Tensor, targets: Tensor, steps: int) -> None:
        """Build the model, compile if asked, and make the first steps."""
        torch.manual_seed(0)
        self.model = self.build().to(self.device).train()
        self.inputs, self.targets = inputs, targets
        self.optimizer = torch.optim.Adam(bp.param_groups(self.model, 1e-3, 1e-2, 1e-4), fused=True)
        self.keys = NoiseKeys(self.model, seed=0, device=self.device)
        self.table = self.keys.for_steps(0, steps)
        gated = bool(bp.gates(self.model))

        def objective(x: Tensor, y: Tensor) -> Tensor:
            nll = F.cross_entropy(self.model(x), y)
            return bp.negative_elbo(nll, self.model, N_DATA) if gated else nll

        self.objective = torch.compile(objective, fullgraph=True) if self.compiled else objective
        started = time.perf_counter()
        self.step(0)
        self.compile_seconds = time.perf_counter() - started if self.compiled else 0.0
        for index in range(TURN):
            self.step(index)

    def step(self, index: int) -> None:
        """One training step."""
        batch = index % (len(self.inputs) // BATCH)
        chosen = slice(batch * BATCH, (batch + 1) * BATCH)
        if self.keys.streams:
            self.keys.set(self.table[index])
        loss = self.objective(self.inputs[chosen], self.targets[chosen])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def take_turn(self, start: int) -> None:
        """A few timed steps."""
        for index in range(start, start + TURN):
            began = time.perf_counter()
            self.step(index)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.times.append(1e3 * (time.perf_counter() - began))


def measure(steps: int, device: torch.device) -> list[Contender]:
    """Time all contenders in turns."""
    inputs = torch.rand(20 * BATCH, 784, device=device)
    targets = torch.randint(0, 10, (20 * BATCH,), device=device)
    contenders = [
        Contender(f"{name}, {'compiled' if compiled else 'eager'}", build, compiled, device)
        for compiled in (False, True)
        for name, build in (("dropout", with_dropout), ("BB gates", with_gates))
    ]
    for contender in track(contenders, "building and compiling", transient=True):
        contender.prepare(inputs, targets, steps)
    for start in track(range(0, steps, TURN), "measuring", transient=True):
        for contender in contenders:
            contender.take_turn(start)
    return contenders


def main() -> None:
    """Measure, print, and append rows if asked."""
    parser = argparse.ArgumentParser(description="The cost of a training step with BB gates against plain dropout.")
    parser.add_argument("--steps", type=int, default=600, help="timed steps of each contender")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, help="append raw numbers to this JSONL file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    contenders = measure(max(TURN, arguments.steps // TURN * TURN), device)
    table = Table(title=f"LeNet-500-300, batch {BATCH}, a training step, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for heading in ("", "median ms", "10 % ms", "90 % ms", "compile s"):
        table.add_column(heading, justify="right" if heading else "left")
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    for contender in contenders:
        deciles = statistics.quantiles(contender.times, n=10)
        median = statistics.median(contender.times)
        table.add_row(contender.name, f"{median:.2f}", f"{deciles[0]:.2f}", f"{deciles[-1]:.2f}", f"{contender.compile_seconds:.0f}")
        if arguments.rows is not None:
            make_folder(arguments.rows.parent)
            append_row(
                arguments.rows,
                {
                    "benchmark": "step_cost", "contender": contender.name, "median_ms": median, "p10_ms": deciles[0], "p90_ms": deciles[-1],
                    "compile_s": contender.compile_seconds, "steps": len(contender.times), "batch": BATCH, "seed": 0, "device": hardware,
                    "threads": torch.get_num_threads(), "torch": torch.__version__, "version": bp.__version__,
                },
            )  # fmt: skip
    best = {
        kind: min((statistics.median(c.times) for c in contenders if c.name.startswith(kind)), default=0.0)
        for kind in ("dropout", "BB gates")
    }
    console = Console()
    console.print(table)
    console.print(f"best BB step / best dropout step: {best['BB gates'] / best['dropout']:.2f}")


if __name__ == "__main__":
    as_command(main)
