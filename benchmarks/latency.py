"""What removing units is worth on the clock: dense networks against compacted ones, batch 1 and batch 64.

Which units stay is set by hand, as many as the paper's networks keep, so that no training is needed: a latency depends on sizes alone.
Prints a table for each network and appends its rows, with hardware and versions, to a JSONL file.

    .venv/bin/python benchmarks/latency.py --rows results/latency.jsonl
    .venv/bin/python benchmarks/latency.py --runtimes eager compiled onnxruntime --threads 1
"""

import argparse
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.benchmark import RUNTIMES, benchmark
from bayesprune.cli import as_command
from bayesprune.cost import cost
from bayesprune.models import LeNet5Caffe, VGGLike
from bayesprune.storage import append_row, make_folder

VGG_WIDTHS = (24, 61, 103, 112, 107, 82, 51, 50, 59, 30, 35, 33, 63, 79, 87)
# The 60 flattened positions are spread over all 12 channels that are left, 16 positions each; otherwise some channels had no reader.
LENET5_UNITS = (range(8), range(12), range(0, 180, 3), range(35))
DROPPED, KEPT = -20.0, 2.0


@dataclass(frozen=True)
class Case:
    """A network in full and a small one that takes the same inputs."""

    name: str
    dense: Callable[[], nn.Module]
    small: Callable[[Tensor], nn.Module]
    input_shape: tuple[int, ...]
    kept: tuple[int, ...]


def keep_units(gated: nn.Module, units: Collection[Collection[int]]) -> nn.Module:
    """Set BB gates, in network order, so that exactly these units are kept."""
    with torch.no_grad():
        for gate, kept in zip(bp.gates(gated).values(), units, strict=True):
            raw_a = gate.get_parameter("raw_a")
            raw_a.fill_(DROPPED)
            raw_a[list(kept)] = KEPT
            assert gate.keep().nonzero().flatten().tolist() == sorted(kept)
    return gated


def compacted(build: Callable[[], nn.Module], units: Collection[Collection[int]], example_inputs: Tensor) -> nn.Module:
    """The network without the other units."""
    gated = keep_units(bp.sparsify(build().eval(), "bb"), units)
    return bp.compact(gated, example_inputs=example_inputs).model


def case(name: str, build: Callable[[], nn.Module], units: Collection[Collection[int]], input_shape: tuple[int, ...]) -> Case:
    """A network against itself with these units left."""
    return Case(name, build, partial(compacted, build, units), input_shape, tuple(len(kept) for kept in units))


CASES = (
    case("lenet5-caffe", LeNet5Caffe, LENET5_UNITS, (1, 28, 28)),
    case("vgg-like", VGGLike, [range(width) for width in VGG_WIDTHS], (3, 32, 32)),
)


def main() -> None:
    """Measure, print and append rows."""
    parser = argparse.ArgumentParser(description="Latency of dense and compacted networks.")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--runtimes", nargs="+", choices=list(RUNTIMES), default=["eager"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of timed calls for each row, at least")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's own choice")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, default=Path("results/latency.jsonl"), help="append raw numbers to this JSONL file")
    arguments = parser.parse_args()
    console = Console()
    make_folder(arguments.rows.parent)
    for each in CASES:
        torch.manual_seed(0)
        x = torch.rand(2, *each.input_shape)
        models = {name: model.to(arguments.device).eval() for name, model in (("dense", each.dense()), ("compacted", each.small(x)))}
        x = x.to(arguments.device)
        costs = {name: cost(model, x) for name, model in models.items()}
        result = benchmark(
            models,
            x,
            batch_sizes=arguments.batch_sizes,
            runtimes=arguments.runtimes,
            seconds=arguments.seconds,
            threads=arguments.threads,
            progress=True,
        )
        console.print(
            f"{each.name}, kept {'-'.join(map(str, each.kept))}: {costs['compacted'].relative_to(costs['dense'])}", highlight=False
        )
        console.print(str(result), highlight=False, soft_wrap=True)
        for row in result.rows():
            counted = costs[row["model"]]
            sizes = {"macs": counted.macs, "parameters": counted.parameters, "bytes": counted.bytes}
            append_row(arguments.rows, {"benchmark": "latency", "network": each.name, "kept": each.kept, **row, **sizes, "seed": 0})


if __name__ == "__main__":
    as_command(main)
