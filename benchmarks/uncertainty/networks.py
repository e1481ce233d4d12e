"""The networks whose predictions are measured, trained on MNIST without its last training images."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.data import Dataset, load_dataset
from bayesprune.experiments.main_job import batches_of
from bayesprune.models import build_network
from bayesprune.noise import derive_seed
from bayesprune.training import Recipe, StageRecipe, find_recipe
from bayesprune.training.plan import DENSE, Plan, make_plan
from bayesprune.training.stages import run_stages
from bayesprune.training.store import run_store
from bayesprune.training.watching import ProgressBars
from benchmarks.per_input.networks import test_images

NETWORK = "lenet-500-300"
FAST = find_recipe("fast")
METHODS = (DENSE, "cd", "bb", "dbb", "sbp", "vib")
HELD_OUT = 10_000
"""Training images at the end that nothing is trained on: for temperatures."""
DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class Digits:
    """What networks are trained on, and images to measure with, as networks take them.

    Attributes:
        data: all but the held out images to train on, and those to evaluate with meanwhile.
        held_out: images and labels.
        test: images and labels.
    """

    data: Dataset
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits() -> Digits:
    """MNIST in three parts."""
    whole = load_dataset("mnist")
    train, held_out = whole.train.split_off(HELD_OUT)
    parts = (test_images(replace(whole, test=part), DEVICE) for part in (held_out, whole.test))
    return Digits(replace(whole, train=train, test=held_out), *parts)


def recipe_of(method: str) -> Recipe:
    """The recipe ``fast``; a dense network is trained for as many epochs as it has for pretraining and pruning."""
    if method != DENSE:
        return FAST
    alone = FAST.stages["dense"].epochs + FAST.stages["pruned"].epochs
    return replace(FAST, stages={"dense": StageRecipe(epochs=alone, lr=FAST.stages["dense"].lr, schedule="cosine")})


def trained(method: str, seed: int, given: Digits, folder: Path) -> nn.Module:
    """A network in evaluation mode, with its gates if the method has any; its training is kept in a folder."""
    recipe, n_data = recipe_of(method), len(given.data.train)
    plan = Plan(DENSE, recipe, (DENSE,), seed) if method == DENSE else make_plan(method, recipe, n_data, seed=seed)
    training, validation = batches_of(given.data, recipe, DEVICE)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "weights"))
        network = build_network(NETWORK)
    about = {"network": NETWORK, "method": method, "seed": seed}
    with run_store(folder / f"{method}-{seed}", about) as store, ProgressBars() as watcher:
        (run,) = run_stages([network], [plan], training, validation, F.cross_entropy, store, watcher)
    return run.model.eval()
