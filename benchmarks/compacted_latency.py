"""What removal is worth on the clock for networks that were trained: every artifact of a reproduction against the dense network.

Reads the rows of reproductions of large networks and the artifacts that they name, and writes a row for each artifact and batch size, with
xFLOPs as the paper counts them, multiply-accumulates and milliseconds:

    .venv/bin/python benchmarks/compacted_latency.py
    .venv/bin/python benchmarks/compacted_latency.py --results reproductions/quick --batch-sizes 1 --threads 1
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bayesprune.artifact import load
from bayesprune.benchmark import benchmark
from bayesprune.cli import as_command
from bayesprune.data.catalog import known_dataset
from bayesprune.errors import BayespruneError
from bayesprune.experiments.evidence import NETWORKS
from bayesprune.experiments.protocol import OWN_TARGETS, own_name
from bayesprune.experiments.rows import ResultRow, read_result_rows
from bayesprune.experiments.tables import TABLES
from bayesprune.models import build_network
from bayesprune.report.document.latencies import LATENCIES
from bayesprune.storage import exists, files_in, write_rows

ROOT = Path(__file__).resolve().parents[1]
ABOUT = ("network", "dataset", "method", "tradeoff", "seed", "recipe", "placement", "shrink", "error", "speedup")
"""What of a network's own row is repeated."""


def with_artifacts(results: Path) -> Iterator[tuple[ResultRow, Path]]:
    """The rows of large networks whose artifact is there, and where."""
    large = {name: table for name, table in TABLES.items() if not table.together}
    names = [f"{table.network}-{table.dataset}" for table in large.values()]
    names += [own_name(recipe, name) for recipe, own in OWN_TARGETS.items() for name in own if name in large]
    for path in files_in(results):
        if path.suffix == ".jsonl" and any(path.name.startswith(name) for name in names):
            for row in read_result_rows(path):
                name = (row.written.get("compacted") or {}).get("file")
                if name is not None and exists(results / NETWORKS / name):
                    yield row, results / NETWORKS / name


def measure(row: ResultRow, artifact: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each batch size: dense and compacted network in turns."""
    dense = build_network(row.network, known_dataset(row.dataset).classes).eval()
    inputs = torch.randn(max(arguments.batch_sizes), *dense.input_shape)  # type: ignore[misc]
    measured = benchmark(
        {"dense": dense, "compacted": load(artifact).eval()},
        inputs,
        batch_sizes=arguments.batch_sizes,
        seconds=arguments.seconds,
        threads=arguments.threads,
    )
    about = {name: row.written[name] for name in ABOUT}
    for size in arguments.batch_sizes:
        timings = {timing.model: timing for timing in measured.timings if timing.batch_size == size}
        yield {
            "benchmark": "compacted_latency",
            **about,
            "macs": row.written["compacted"]["macs"],
            "parameters": row.written["compacted"]["parameters"],
            "batch_size": size,
            **{f"{name}_ms": round(timing.median_ms, 4) for name, timing in timings.items()},
            "faster": round(timings["dense"].median_ms / timings["compacted"].median_ms, 3),
            "threads": timings["dense"].threads,
            **measured.facts,
        }


def main() -> None:
    """Measure, print and write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder with rows of reproductions and artifacts")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="of timed calls for each network and batch size, at least")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's own choice")
    parser.add_argument("--rows", type=Path, help="the JSONL file to write; by default compacted-latency.jsonl in the folder of results")
    arguments = parser.parse_args()
    try:
        found, console = list(with_artifacts(arguments.results)), Console()
    except BayespruneError as error:
        parser.error(str(error))
    if not found:
        parser.error(
            f"no artifacts of large networks in {arguments.results / NETWORKS}: train some with 'bayesprune reproduce vgg-cifar10'"
        )
    rows = []
    for row, artifact in found:
        for each in measure(row, artifact, arguments):
            rows.append(each)
            console.print(
                f"{artifact.stem}: batch {each['batch_size']}, {each['speedup']:.2f} xFLOPs, dense {each['dense_ms']} ms, "
                f"compacted {each['compacted_ms']} ms, {each['faster']:.2f} times faster",
                highlight=False,
                soft_wrap=True,
            )
    write_rows(arguments.rows or arguments.results / LATENCIES, rows)


if __name__ == "__main__":
    as_command(main)
