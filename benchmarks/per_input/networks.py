"""The networks that are measured: two wide ones and VGG-like, which are trained for this, and a very wide one with masks at random."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.data import Dataset
from bayesprune.data.batches import normalise
from bayesprune.experiments.main_job import batches_of
from bayesprune.models import VGGLike
from bayesprune.storage import exists, make_folder, read_tensors
from bayesprune.training import Recipe, StageRecipe, find_recipe
from bayesprune.training.loading import load_members
from bayesprune.training.members import Members
from bayesprune.training.plan import Plan, make_plan
from bayesprune.training.stages import run_stages
from bayesprune.training.store import finished_stage, run_store
from bayesprune.training.watching import ProgressBars

FAST = find_recipe("fast")
BRIEFLY = Recipe(
    "briefly",
    {
        "dense": StageRecipe(epochs=8, schedule="cosine"),
        "pruned": StageRecipe(epochs=15, gate_speed=4.0, schedule="cosine"),
        "dependent": StageRecipe(epochs=5, lr=5e-4, gate_speed=4.0, schedule="cosine"),
    },
    batch_size=100,
    shrink=True,
)
"""For a deep network, whose gates must not be as fast as those of the recipe ``fast``; an hour on two cores."""


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
        precision: of training.
        figure: the name of its figure, if one is drawn.
    """

    name: str
    widths: str
    build: Callable[[], nn.Module]
    tradeoff: float
    recipe: Recipe
    dataset: str = "mnist"
    precision: str = "float32"
    figure: str | None = None

    def file(self, folder: Path, kind: str) -> Path:
        """Where the network is kept, as it was pretrained (``dense``) or with its gates (``dbb``)."""
        return folder / f"{self.name.replace(' ', '-')}-{kind}.safetensors"

    def checkpoints(self, folder: Path) -> Path:
        """The folder of its training."""
        return folder / f"{self.name.replace(' ', '-')}-dense-checkpoints"

    def about(self) -> dict[str, Any]:
        """What the folder of its training says."""
        stages = {name: stage.written() for name, stage in self.recipe.stages.items()}
        return {"network": self.name, "dataset": self.dataset, "tradeoff": self.tradeoff, "stages": stages}

    def plan(self, method: str, n_data: int, pretrain: bool = True) -> Plan:
        """How it is trained."""
        plan = make_plan(method, self.recipe, n_data, tradeoff=self.tradeoff, precision=self.precision, pretrain=pretrain)
        return replace(plan, rarely_evaluated=True)


def perceptron(width: int) -> nn.Module:
    """Two wide hidden layers."""
    layers = (nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def convolutions() -> nn.Module:
    """Wide where images are small, as in most networks of today."""
    widths, layers = (1, 32, 128, 512, 256), list[nn.Module]()
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        stride = 2 if number < 3 else 1  # 14x14, 7x7, and 4x4 twice.
        layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * widths[-1], 10))


def vgg_like() -> nn.Module:
    """Without the dropout of its pretraining, which wants more time."""
    network = VGGLike()
    network.fixed_dropout = False
    return network


TRAINED = (
    Trained(
        "wide perceptron",
        "784-2048-2048-10",
        lambda: perceptron(2048),
        0.003,
        FAST.with_epochs({"dense": 3, "pruned": 4, "dependent": 8}),
        figure="latency-by-work",
    ),
    Trained(
        "wide convolutions",
        "32, 128, 512 and 256 filters",
        convolutions,
        0.003,
        FAST.with_epochs({"dense": 2, "pruned": 3, "dependent": 6}),
    ),
    Trained("vgg-like", "13 convolutions", vgg_like, 4.0, BRIEFLY, "cifar10", "bfloat16"),
)
VERY_WIDE, VERY_WIDE_UNITS = "very wide perceptron, random masks", 16_384


def test_images(data: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """Test images as networks take them, and their labels."""
    mean, std = (torch.tensor(each, device=device) for each in (data.mean, data.std))
    return normalise(data.test.images.to(device), mean, std), data.test.labels.to(device)


def trained(network: Trained, data: Dataset, folder: Path, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A network as it was pretrained, and with input-dependent gates; kept in a folder."""
    dense, gated = network.file(folder, "dense"), network.file(folder, "dbb")
    if not (exists(dense) and exists(gated)):
        make_folder(folder)
        _train(network, data, network.checkpoints(folder), dense, gated, device)
    return bp.load(dense).eval().to(device), bp.load(gated, into=network.build()).eval().to(device)


def _train(network: Trained, data: Dataset, checkpoints: Path, dense: Path, gated: Path, device: torch.device) -> None:
    training, test = batches_of(data, network.recipe, device)
    torch.manual_seed(0)
    with run_store(checkpoints, network.about()) as store, ProgressBars() as watcher:
        plan = network.plan("dbb", len(data.train))
        (run,) = run_stages([network.build().to(device)], [plan], training, test, F.cross_entropy, store, watcher)
    example, _ = test_images(replace(data, test=data.test.first(1)), torch.device("cpu"))
    bp.save(pretrained(network, checkpoints), dense, example_inputs=example)
    bp.save(run.model.cpu(), gated)


def pretrained(network: Trained, checkpoints: Path) -> nn.Module:
    """The network as it was before gates were put in, from the folder of its training."""
    model = network.build()
    load_members(Members([model]), read_tensors(finished_stage(checkpoints, "dense"))[0])
    return model


@torch.no_grad()
def very_wide(images: Tensor) -> tuple[nn.Module, nn.Module]:
    """A perceptron so wide that reading its weights takes longer than anything else, and with gates of which an image needs a tenth."""
    torch.manual_seed(0)
    dense = perceptron(VERY_WIDE_UNITS).eval()
    gated = bp.sparsify(dense, "bb", example_inputs=images[:2].cpu())
    for gate in bp.gates(gated).values():
        gate.raw_a.copy_(torch.where(torch.rand(gate.num_units) < 0.5, 2.0, -15.0))  # type: ignore[operator]
    staged = bp.make_dependent(gated).to(images.device).eval()
    for gate in bp.gates(staged).values():
        gate.running_mean.normal_()  # type: ignore[operator]
        gate.shift.normal_(-1.8, 1.0)  # type: ignore[operator]
    return dense.to(images.device), staged
