"""What a training step costs on a processor with images pixel by pixel in memory (`channels_last`), or plane by plane.

The trainer puts those networks into the first order that gain here. With and without BB gates, in turns. Appends a row for each to
results/memory-format.jsonl:

    python -m benchmarks.memory_format
"""

import argparse
import copy
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.attach import sparsify
from bayesprune.benchmark.result import machine_facts
from bayesprune.cli import as_command
from bayesprune.data import TensorBatches
from bayesprune.data.dataset import Split
from bayesprune.models import DenseNet, MobileNetV2, ResNet, build_network, resnet50
from bayesprune.storage import append_row, make_folder
from bayesprune.training import trainer
from bayesprune.training.recipes import StageRecipe

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = {
    "lenet5-caffe": (lambda: build_network("lenet5-caffe"), (1, 28, 28), 100),
    "resnet": (ResNet, (3, 32, 32), 32),
    "mobilenet-v2": (MobileNetV2, (3, 32, 32), 32),
    "densenet": (DenseNet, (3, 32, 32), 32),
    "resnet-50": (lambda: resnet50(num_classes=10), (3, 64, 64), 16),
    "vgg-like": (lambda: build_network("vgg-like"), (3, 32, 32), 32),
}
"""How to make each, and the shape and number of images in a batch."""


def stages(model: nn.Module, shape: tuple[int, ...], batch_size: int, steps: int) -> dict[str, trainer.StageTrainer]:
    """The same training, with images in either order."""
    images = torch.randint(0, 256, (steps * batch_size, *shape), dtype=torch.uint8)
    split = Split(images, torch.randint(0, 10, (len(images),)))
    source = TensorBatches(split, (0.5,) * shape[0], (0.25,) * shape[0], batch_size, "cpu")
    made = {}
    trainer.lay_out = lambda *_: []
    for name, order in (("planes", torch.contiguous_format), ("pixels", torch.channels_last)):
        laid_out: Any = copy.deepcopy(model).to(memory_format=order)  # type: ignore[call-overload]
        made[name] = trainer.StageTrainer([laid_out], source, StageRecipe(epochs=1000), F.cross_entropy)
    return made


def milliseconds(made: dict[str, trainer.StageTrainer], steps: int, rounds: int) -> dict[str, float]:
    """Of a step, medians over epochs that take turns."""
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds + 1):
        for name, stage in made.items():
            started = time.perf_counter()
            stage.train_epoch(lambda _: None)
            times[name].append(1e3 * (time.perf_counter() - started) / steps)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=10, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "memory-format.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make_folder(arguments.rows.parent)
    for network in arguments.networks:
        build, shape, batch_size = NETWORKS[network]
        torch.manual_seed(0)
        dense = build()
        gated = sparsify(dense, "bb", example_inputs=torch.rand(2, *shape))
        for gates, model in ((False, dense), (True, gated)):
            found = milliseconds(stages(model, shape, batch_size, arguments.steps), arguments.steps, arguments.rounds)
            about: dict[str, Any] = {"benchmark": "memory_format", "network": network, "gates": gates, "batch_size": batch_size}
            row = {f"{name}_ms": round(value, 3) for name, value in found.items()} | {"gain": round(found["planes"] / found["pixels"], 2)}
            append_row(arguments.rows, {**about, **row, "threads": arguments.threads, **machine_facts("cpu")})
            print(network, "with gates" if gates else "", row, flush=True)


if __name__ == "__main__":
    as_command(main)
