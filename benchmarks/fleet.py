"""What a step of training costs for many models side by side, beside one model after another.

Appends a row for each to results/fleet.jsonl:

    .venv/bin/python benchmarks/fleet.py
    .venv/bin/python benchmarks/fleet.py --network lenet5-caffe --sizes 1 15 45 --steps 200
    .venv/bin/python benchmarks/fleet.py --network lenet-500-300 --noise torch    # what keyed noise costs
    .venv/bin/python benchmarks/fleet.py --network vgg-like    # float32 and bfloat16, eager and captured
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesprune.noise
from bayesprune.attach import make_dependent, sparsify
from bayesprune.benchmark.result import machine_facts
from bayesprune.cli import as_command
from bayesprune.data import TensorBatches
from bayesprune.data.dataset import Split
from bayesprune.models import build_network
from bayesprune.storage import append_row, make_folder
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"lenet-500-300": (1, 15, 90), "lenet5-caffe": (1, 15, 45), "vgg-like": (1,)}
BATCH = 100


@contextmanager
def noise_from(source: str) -> Iterator[None]:
    """Meanwhile gates draw with their keys or, to see what those cost, with torch's own generator."""
    keyed = bayesprune.noise.keyed_uniform

    def drawn(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32, *_: object) -> Tensor:
        return torch.rand(list(shape), dtype=dtype, device=key.device).clamp(min=2.0**-25)

    if source == "torch":
        bayesprune.noise.keyed_uniform = drawn  # type: ignore[assignment]
    try:
        yield
    finally:
        bayesprune.noise.keyed_uniform = keyed


def made_up_data(network: nn.Module, batches: int, device: str) -> TensorBatches:
    """Random images and labels: the time of a step does not depend on what they show."""
    torch.manual_seed(0)
    shape = tuple(network.input_shape)  # type: ignore[arg-type]
    images = torch.randint(0, 256, (batches * BATCH, *shape), dtype=torch.uint8)
    split = Split(images, torch.randint(0, 10, (batches * BATCH,)))
    channels = shape[0]
    return TensorBatches(split, (0.5,) * channels, (0.25,) * channels, BATCH, device, augment=channels == 3)


def members(network: str, method: str, count: int, device: str) -> list[nn.Module]:
    """Models with gates and weights of their own."""
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        model = sparsify(build_network(network, 10), "bb" if method == "dbb" else method)
        models.append((make_dependent(model) if method == "dbb" else model).to(device))
    return models


def measure(network: str, method: str, count: int, steps: int, device: str, captured: bool, precision: torch.dtype) -> dict[str, Any]:
    """The time of a step of so many models, after an epoch that sets everything up."""
    models = members(network, method, count, device)
    source = made_up_data(models[0], steps, device)
    trainer = StageTrainer(models, source, StageRecipe(epochs=100), F.cross_entropy, precision=precision, captured=captured)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(4):
        started = time.perf_counter()
        trainer.train_epoch(lambda _loss: None)
        times.append(time.perf_counter() - started)
    best = sorted(times[1:])[1]
    return {
        "models": count,
        "captured": trainer.captures,
        "ms_per_step": round(1e3 * best / steps, 4),
        "model_steps_per_second": round(count * steps / best, 1),
        "set_up_seconds": round(times[0] - best, 2),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if device == "cuda" else None,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(SIZES), nargs="+", default=list(SIZES))
    parser.add_argument("--method", default="bb")
    parser.add_argument("--sizes", type=int, nargs="+", help="how many models side by side")
    parser.add_argument("--steps", type=int, default=300, help="of an epoch; a tenth of them one by one")
    parser.add_argument("--noise", choices=("keyed", "torch"), default="keyed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "fleet.jsonl")
    arguments = parser.parse_args()
    make_folder(arguments.rows.parent)
    with noise_from(arguments.noise):
        measure_all(arguments)


def measure_all(arguments: argparse.Namespace) -> None:
    """A row for each network and number of models, one step after another and as one program, and for a large network each precision."""
    facts = machine_facts(arguments.device)
    about = {"benchmark": "fleet", "method": arguments.method, "batch_size": BATCH, "noise": arguments.noise, "steps": arguments.steps}
    few = max(arguments.steps // 10, 2)
    for network in arguments.network:
        both = arguments.device == "cuda" and network == "vgg-like"  # In bfloat16 its memory is laid out channels last.
        plain = None
        for precision in (torch.float32, torch.bfloat16) if both else (torch.float32,):
            one_by_one = measure(network, arguments.method, 1, few, arguments.device, False, precision)
            sizes = arguments.sizes or SIZES[network]
            together = (measure(network, arguments.method, size, arguments.steps, arguments.device, True, precision) for size in sizes)
            plain = plain or one_by_one
            for row in (one_by_one, *together):
                row["times_one_by_one"] = round(row["model_steps_per_second"] / plain["model_steps_per_second"], 2)
                append_row(arguments.rows, {**about, "network": network, "precision": str(precision), **row, **facts})
                print(network, arguments.method, precision, row, flush=True)


if __name__ == "__main__":
    as_command(main)
