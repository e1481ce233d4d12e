"""Measure per-input execution on the machine at hand.

The LeNets whose DBB models lie in results/models; a wide perceptron and wide convolutions on MNIST that are trained here (BB with a weak
trade-off, so that many units are kept, then DBB, which picks few of them for an image); VGG-like on CIFAR-10, in the folder that
BAYESPRUNE_DATA names, trained here too, for about an hour on two cores; and, where it is named with --only, a very wide perceptron
whose masks are random. What is trained on one device can be measured on another: the networks are kept.

    python -m benchmarks.per_input --rows results/per-input.jsonl --figures docs/figures
    python -m benchmarks.per_input --rows results/per-input.jsonl --device cuda --train-on cpu
    python -m benchmarks.per_input --only vgg-like --train-on cuda
"""

import argparse
import warnings
from pathlib import Path

import torch

from bayesprune.cli import as_command
from bayesprune.data import load_dataset
from bayesprune.errors import BayespruneWarning
from bayesprune.experiments.evidence import evidence_path, load_evidence
from bayesprune.models import build_network
from bayesprune.report.figures.latency_by_work import draw_latency_by_work
from benchmarks.per_input.measuring import Measuring
from benchmarks.per_input.networks import TRAINED, VERY_WIDE, Trained, test_images, trained, very_wide

LENETS = ("lenet-500-300", "lenet5-caffe")
USUAL = (*(each.name for each in TRAINED), *LENETS)


def main() -> None:
    """Train what is missing, and measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="append raw numbers to this JSONL file; without it networks are trained only")
    parser.add_argument("--only", nargs="+", choices=(*USUAL, VERY_WIDE), default=USUAL, help="these networks alone")
    parser.add_argument("--figures", type=Path, help="the folder for the figures of the wide networks")
    parser.add_argument("--work", type=Path, default=Path("runs/per-input"), help="where the trained networks are kept")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="to measure on")
    parser.add_argument("--train-on", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", BayespruneWarning)
    torch.set_num_threads(arguments.threads)
    measuring = None if arguments.rows is None else Measuring(arguments.rows, arguments.inputs, arguments.threads)
    if measuring is not None:
        _ready_made(measuring, arguments)
    for network in TRAINED:
        if network.name in arguments.only:
            _trained_one(network, measuring, arguments)


def _ready_made(measuring: Measuring, arguments: argparse.Namespace) -> None:
    """Those that need no training."""
    data = load_dataset("mnist")
    images, _ = test_images(data, arguments.device)
    for name in LENETS:
        if name in arguments.only:
            gated = load_evidence(name, data.num_classes, evidence_path(Path("results"), name, "mnist")).to(arguments.device)
            measuring.measure(name, build_network(name, data.num_classes).eval().to(arguments.device), gated, images, None)
    if VERY_WIDE in arguments.only:
        measuring.measure(VERY_WIDE, *very_wide(images), images, None)


def _trained_one(network: Trained, measuring: Measuring | None, arguments: argparse.Namespace) -> None:
    data = load_dataset(network.dataset)
    dense, gated = (each.to(arguments.device) for each in trained(network, data, arguments.work, arguments.train_on))
    if measuring is None:
        return
    measured = measuring.measure(network.name, dense, gated, *test_images(data, arguments.device))
    if arguments.figures is not None and network.figure is not None:
        where = f"{arguments.threads} threads" if arguments.device.type == "cpu" else str(arguments.device)
        title = f"{network.name}, {network.widths}, on {network.dataset.upper()}, one image at a time, {where}"
        draw_latency_by_work(measured.models, arguments.figures / f"{network.figure}.png", title=title)


if __name__ == "__main__":
    as_command(main)
