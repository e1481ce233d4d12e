"""What per-input execution gains: dense, compacted and adaptive networks on single test images.

The LeNets whose DBB models lie in results/models; a wide perceptron and wide convolutions on MNIST that are trained here (BB with a weak
trade-off, so that many units are kept, then DBB, which picks few of them for an image); and VGG-like, trained here too, in few epochs on a
processor (an hour; on CIFAR-10, in the folder that BAYESPRUNE_DATA names).

    python -m benchmarks.per_input --rows results/per-input.jsonl --figures docs/figures
"""

import argparse
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesprune as bp
from bayesprune.adaptive.work import count_work
from bayesprune.benchmark import PerInputBenchmark, benchmark_per_input
from bayesprune.data import Dataset, load_dataset
from bayesprune.data.batches import normalise
from bayesprune.errors import BayespruneWarning
from bayesprune.experiments.evidence import evidence_path, load_evidence
from bayesprune.models import VGGLike, build_network
from bayesprune.report.figures.latency_by_work import draw_latency_by_work
from bayesprune.storage import append_row, exists, make_folder, read_tensors
from bayesprune.training import Recipe, StageRecipe, find_recipe
from bayesprune.training.members import Members
from bayesprune.training.store import finished_stage
from bayesprune.training.trainer import load_members

EXAMPLES = 200
BATCH_SIZES = (1, 8, 64)
BRIEFLY = Recipe(
    "briefly",
    {
        "dense": StageRecipe(epochs=3, schedule="cosine"),
        "pruned": StageRecipe(epochs=4, gate_speed=4.0, schedule="cosine"),
        "dependent": StageRecipe(epochs=2, lr=5e-4, gate_speed=4.0, schedule="cosine"),
    },
    shrink=True,
)
"""For a deep network, whose gates must not be as fast as those of the recipe ``fast``."""


@dataclass(frozen=True)
class Trained:
    """A network that is trained here.

    Attributes:
        name: for people.
        widths: for people too.
        build: makes a new one.
        tradeoff: of BB.
        recipe: of its stages.
        dataset: on which.
        batch_size: of training.
        precision: of training.
        figure: the name of its figure, if one is drawn.
    """

    name: str
    widths: str
    build: Callable[[], nn.Module]
    tradeoff: float
    recipe: Recipe
    dataset: str = "mnist"
    batch_size: int = 200
    precision: str = "float32"
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


def vgg_like() -> nn.Module:
    """Without the dropout of its pretraining, for which there is no time."""
    network = VGGLike()
    network.fixed_dropout = False
    return network


TRAINED = (
    Trained(
        "wide perceptron",
        "784-2048-2048-10",
        perceptron,
        0.003,
        find_recipe("fast").with_epochs({"dense": 3, "pruned": 4, "dependent": 8}),
        figure="latency-by-work",
    ),
    Trained(
        "wide convolutions",
        "32, 128, 512 and 256 filters",
        convolutions,
        0.003,
        find_recipe("fast").with_epochs({"dense": 2, "pruned": 3, "dependent": 6}),
    ),
    Trained("vgg-like", "13 convolutions", vgg_like, 16.0, BRIEFLY, "cifar10", 100, "bfloat16"),
)
LENETS = ("lenet-500-300", "lenet5-caffe")


def images_of(data: Dataset) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images as networks take them, with labels."""
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    training, test = (TensorDataset(normalise(split.images, mean, std), split.labels) for split in (data.train, data.test))
    return training, test


def train(network: Trained, data: Dataset, folder: Path) -> tuple[nn.Module, nn.Module]:
    """A network as it was pretrained, and with input-dependent gates; kept in a folder."""
    training, test = images_of(data)
    dense, gated = network.file(folder, "dense"), network.file(folder, "dbb")
    if not (exists(dense) and exists(gated)):
        make_folder(folder)
        torch.manual_seed(0)
        checkpoints = folder / f"{dense.stem}-checkpoints"
        result = bp.fit(
            network.build(),
            DataLoader(training, network.batch_size, shuffle=True),
            validation=DataLoader(test, 1000),
            method="dbb",
            tradeoff=network.tradeoff,
            recipe=network.recipe,
            precision=network.precision,
            checkpoints=checkpoints,
        )
        bp.save(result.model, gated)
        pretrained = network.build()
        load_members(Members([pretrained]), read_tensors(finished_stage(checkpoints, "dense"))[0])
        bp.save(pretrained, dense, example_inputs=test[0][0][None])
    return bp.load(dense).eval(), bp.load(gated, into=network.build()).eval()


def measure(
    name: str, dense: nn.Module, gated: nn.Module, images: Tensor, labels: Tensor | None, arguments: argparse.Namespace
) -> PerInputBenchmark:
    """Append the rows of a network, one for each form of it, and print them."""
    adaptive = bp.AdaptiveModel(gated, images[:EXAMPLES], batch_sizes=BATCH_SIZES, cache=None)
    convolutions = [each for each in adaptive.parts.convolutions if each.available]
    networks: dict[str, nn.Module] = {
        "compacted": adaptive.compacted,
        "compacted, light": adaptive.plain,
        **({"compacted, native": adaptive.parts.with_layers([], convolutions)} if convolutions else {}),
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
    known = (*(each.name for each in TRAINED), *LENETS)
    parser = argparse.ArgumentParser(description="Dense, compacted and adaptive networks, input by input.")
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="these networks alone")
    parser.add_argument("--figures", type=Path, help="the folder for the figures of the wide networks")
    parser.add_argument("--work", type=Path, default=Path("runs/per-input"), help="where the trained networks are kept")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", BayespruneWarning)
    torch.set_num_threads(arguments.threads)
    for network in TRAINED:
        if network.name not in arguments.only:
            continue
        data = load_dataset(network.dataset)
        measured = measure(network.name, *train(network, data, arguments.work), *images_of(data)[1].tensors, arguments)
        if arguments.figures is not None and network.figure is not None:
            title = f"{network.name}, {network.widths}, on {network.dataset.upper()}, one image at a time, {arguments.threads} threads"
            draw_latency_by_work(measured.models, arguments.figures / f"{network.figure}.png", title=title)
    data = load_dataset("mnist")
    images = images_of(data)[1].tensors[0]
    for name in LENETS:
        if name in arguments.only:
            gated = load_evidence(name, data.num_classes, evidence_path(Path("results"), name, "mnist"))
            measure(name, build_network(name, data.num_classes).eval(), gated, images, None, arguments)


if __name__ == "__main__":
    main()
