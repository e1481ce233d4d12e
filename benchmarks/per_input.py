"""What per-input execution gains: dense, compacted and adaptive networks on single test images of MNIST.

Five networks: the LeNets whose DBB models lie in results/models, a wide perceptron and wide convolutions that are trained here (BB with a
weak trade-off, so that many units are kept, then DBB, which picks few of them for an image), and a VGG-like network with the widths that
the paper's memory suggests, whose masks are drawn at random, because no trained one is at hand: it says what masks would gain, nothing
about errors.

    python -m benchmarks.per_input --rows results/per-input.jsonl --figures docs/figures
"""

import argparse
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesprune as bp
from bayesprune.adaptive.work import count_work
from bayesprune.benchmark import PerInputBenchmark, benchmark_per_input
from bayesprune.data import Dataset, load_dataset
from bayesprune.errors import BayespruneWarning
from bayesprune.experiments.evidence import evidence_path, load_evidence
from bayesprune.models import VGGLike, build_network
from bayesprune.report.figures.latency_by_work import draw_latency_by_work
from bayesprune.storage import append_row, exists, make_folder, read_tensors
from bayesprune.training.members import Members
from bayesprune.training.store import finished_stage
from bayesprune.training.trainer import load_members

EXAMPLES = 200
KEPT, NEEDED = 0.45, 0.6
"""Of the VGG-like network: the share of units that BB keeps, and that of these which an input needs."""
BATCH_SIZES = (1, 8, 64)


@dataclass(frozen=True)
class Wide:
    """A network that is trained here.

    Attributes:
        name: for people.
        widths: for people too.
        build: makes a new one.
        tradeoff: of BB.
        epochs: of its stages.
        figure: the name of its figure, if one is drawn.
    """

    name: str
    widths: str
    build: Callable[[], nn.Module]
    tradeoff: float
    epochs: Mapping[str, int]
    figure: str | None = None

    def file(self, folder: Path, kind: str) -> Path:
        return folder / f"{self.name.replace(' ', '-')}-{kind}.safetensors"


def perceptron() -> nn.Module:
    """Two wide hidden layers."""
    layers = (nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def convolutions() -> nn.Module:
    """Wide where images are small, as in most networks of today."""
    widths, layers = (1, 32, 128, 512, 256), list[nn.Module]()
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        stride = 2 if number < 3 else 1  # 14x14, 7x7, and 4x4 twice.
        layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * widths[-1], 10))


WIDE = (
    Wide("wide perceptron", "784-2048-2048-10", perceptron, 0.003, {"dense": 3, "pruned": 4, "dependent": 8}, "latency-by-work"),
    Wide(
        "wide convolutions",
        "32, 128, 512 and 256 filters",
        convolutions,
        0.003,
        {"dense": 2, "pruned": 3, "dependent": 6},
    ),
)


def images_of(data: Dataset) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images from 0 to 1, with labels."""
    training, test = (TensorDataset(split.images.float() / 255, split.labels) for split in (data.train, data.test))
    return training, test


def train(wide: Wide, data: Dataset, folder: Path) -> tuple[nn.Module, nn.Module]:
    """A network as it was pretrained, and with input-dependent gates; kept in a folder."""
    training, test = images_of(data)
    dense, gated = wide.file(folder, "dense"), wide.file(folder, "dbb")
    if not (exists(dense) and exists(gated)):
        make_folder(folder)
        torch.manual_seed(0)
        checkpoints = folder / f"{dense.stem}-checkpoints"
        loaders: dict[str, Any] = {"loader": DataLoader(training, 200, shuffle=True), "validation": DataLoader(test, 1000)}
        options: dict[str, Any] = {"method": "dbb", "tradeoff": wide.tradeoff, "epochs": wide.epochs, "checkpoints": checkpoints}
        result = bp.fit(wide.build(), **loaders, **options)
        bp.save(result.model, gated)
        pretrained = wide.build()
        load_members(Members([pretrained]), read_tensors(finished_stage(checkpoints, "dense"))[0])
        bp.save(pretrained, dense, example_inputs=test[0][0][None])
    return bp.load(dense).eval(), bp.load(gated, into=wide.build()).eval()


def random_vgg(seed: int = 0) -> nn.Module:
    """A VGG-like network with DBB gates behind its activations, with random masks of the shares above."""
    torch.manual_seed(seed)
    example = torch.randn(EXAMPLES, 3, 32, 32)
    gated = bp.sparsify(_settled(VGGLike(), example), "bb", example_inputs=example[:2])
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a.copy_(torch.where(torch.rand(gate.num_units) < KEPT, 2.0, -15.0))
    model = bp.make_dependent(gated).eval()
    quantile = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(NEEDED)))
    handles = [gate.register_forward_pre_hook(_take_statistics) for gate in bp.gates(model).values()]
    with torch.no_grad():
        for gate in bp.gates(model).values():
            gate.shift.fill_(quantile)
        model(example)
    for handle in handles:
        handle.remove()
    return model


def _settled(network: nn.Module, example: Tensor) -> nn.Module:
    """A new network whose normalisations have the statistics of the example, so that activations vary in all its layers."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(example)
    return network.eval()


def _take_statistics(gate: Any, inputs: tuple[Tensor, ...]) -> None:
    activation = gate.units.mean(inputs[0])
    gate.running_mean.copy_(activation.mean(dim=0))
    gate.running_var.copy_(activation.var(dim=0))


def measure(
    name: str, dense: nn.Module, gated: nn.Module, images: Tensor, labels: Tensor | None, arguments: argparse.Namespace
) -> PerInputBenchmark:
    """Append the rows of a network, one for each form of it, and print them."""
    adaptive = bp.AdaptiveModel(gated, images[:EXAMPLES], batch_sizes=BATCH_SIZES, cache=None)
    networks: dict[str, nn.Module] = {
        "compacted": adaptive.compacted,
        "compacted, light": adaptive.plain,
        "adaptive": adaptive,
        "dense": dense,
    }
    chosen = slice(EXAMPLES, EXAMPLES + arguments.inputs)
    measured = benchmark_per_input(networks, images[chosen], None if labels is None else labels[chosen], threads=arguments.threads)
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
        append_row(arguments.rows, {**about, **row})
    batches = bp.benchmark(networks, images[:EXAMPLES], batch_sizes=BATCH_SIZES, threads=arguments.threads)
    print(batches, flush=True)
    for row in batches.rows():
        append_row(arguments.rows, {"benchmark": "per_input_batches", "network": name, **row})
    return measured


def main() -> None:
    """Train what is missing, and measure all."""
    parser = argparse.ArgumentParser(description="Dense, compacted and adaptive networks, input by input.")
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    parser.add_argument("--figures", type=Path, help="the folder for the figures of the wide networks")
    parser.add_argument("--work", type=Path, default=Path("runs/per-input"), help="where the trained networks are kept")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", BayespruneWarning)
    torch.set_num_threads(arguments.threads)
    data = load_dataset("mnist", None)
    _, test = images_of(data)
    images, labels = test.tensors
    for wide in WIDE:
        measured = measure(wide.name, *train(wide, data, arguments.work), images, labels, arguments)
        if arguments.figures is not None and wide.figure is not None:
            title = f"{wide.name}, {wide.widths}, on MNIST, one image at a time, {arguments.threads} threads"
            draw_latency_by_work(measured.models, arguments.figures / f"{wide.figure}.png", title=title)
    for network in ("lenet-500-300", "lenet5-caffe"):
        gated = load_evidence(network, data.num_classes, evidence_path(Path("results"), network, "mnist"))
        measure(network, build_network(network, data.num_classes).eval(), gated, images, None, arguments)
    torch.manual_seed(1)
    measure("vgg-like, random masks", VGGLike().eval(), random_vgg(), torch.randn(EXAMPLES + 300, 3, 32, 32), None, arguments)


if __name__ == "__main__":
    main()
