"""The rows of a network: one for each form of it, input by input and in batches."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.adaptive.work import count_work
from bayesprune.benchmark import PerInputBenchmark, benchmark_per_input
from bayesprune.storage import append_row

EXAMPLES = 200
BATCH_SIZES = (1, 8, 64)


@dataclass(frozen=True)
class Measuring:
    """How to measure, and where to write.

    Attributes:
        rows: a JSON line for each form of a network is appended to this file.
        inputs: so many are run one by one.
        threads: processor threads of an operator.
    """

    rows: Path
    inputs: int
    threads: int

    def measure(self, name: str, dense: nn.Module, gated: nn.Module, images: Tensor, labels: Tensor | None) -> PerInputBenchmark:
        """Append the rows of a network and print them."""
        adaptive = bp.AdaptiveModel(gated, images[:EXAMPLES], batch_sizes=BATCH_SIZES, cache=None)
        convolutions = [each for each in adaptive.parts.convolutions if each.available]
        networks: dict[str, nn.Module] = {
            "compacted": adaptive.compacted,
            "compacted, light": adaptive.plain,
            **({"compacted, native": adaptive.parts.with_layers([], convolutions)} if convolutions else {}),
            "adaptive": adaptive,
            "dense": dense,
        }
        chosen = slice(EXAMPLES, EXAMPLES + self.inputs)
        measured = benchmark_per_input(networks, images[chosen], None if labels is None else labels[chosen], threads=self.threads)
        work = count_work(adaptive, images[chosen])
        with torch.no_grad():
            expected, found = gated(images[chosen]), torch.cat([adaptive(image[None]) for image in images[chosen]])
        about = {
            "benchmark": "per_input",
            "network": name,
            "batch": 1,
            "needed_macs_mean": float(work.needed.double().mean()),
            "difference": float((found - expected).norm() / expected.norm()),
            "ways": {layer.name: layer.way for layer in adaptive.plan(1).layers},
        }
        print(f"\n{name}\n{adaptive.plan(1)}\n{measured}", flush=True)
        for row in measured.rows():
            append_row(self.rows, {**about, **row})
        batches = bp.benchmark(networks, images[:EXAMPLES], batch_sizes=BATCH_SIZES, threads=self.threads)
        print(batches, flush=True)
        for row in batches.rows():
            append_row(self.rows, {"benchmark": "per_input_batches", "network": name, **row})
        return measured
