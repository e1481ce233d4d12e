"""What shrinking while training saves: BB on VGG-like and CIFAR-10, with and without it, from the same pretrained network.

Appends a row for each to a JSONL file. Their times compare if both have as much of the machine to themselves. Twice as fast as one after
the other on two cores: pretrain, then start both at once, each with one core (taskset -c 0 and -c 1, OMP_NUM_THREADS=1).

    BAYESPRUNE_DATA=... python -m benchmarks.shrinking --pretrain-only
    BAYESPRUNE_DATA=... python -m benchmarks.shrinking --rows results/shrinking.jsonl [--only whole]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.cli import as_command
from bayesprune.data import Dataset, load_dataset
from bayesprune.experiments.main_job import batches_of, surroundings
from bayesprune.storage import append_row, exists, make_folder
from bayesprune.training import Recipe, StageRecipe
from bayesprune.training.plan import DENSE, Plan
from bayesprune.training.stages import StagedRun, run_stages
from bayesprune.training.store import finished_stage, run_store
from bayesprune.training.watching import ProgressBars
from benchmarks.per_input.networks import Trained, pretrained, vgg_like

RECIPE = Recipe(
    "shrinking",
    {
        "dense": StageRecipe(epochs=6, schedule="cosine"),
        "pruned": StageRecipe(epochs=15, gate_speed=8.0, schedule="cosine"),
    },
)
"""Gates are fast enough to get, in a stage that a network can finish without shrinking on a processor, about as far as in the paper's."""
VGG = Trained("vgg-like", "13 convolutions", vgg_like, 4.0, RECIPE, "cifar10", "bfloat16")
"""At the middle one of the paper's trade-offs."""
WAYS = {"shrinking": True, "whole": False}


def main() -> None:
    """Train what is missing, and append its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--rows", type=Path, help="append raw numbers to this JSONL file")
    asked.add_argument("--pretrain-only", action="store_true", help="train the network that both start from, and stop")
    parser.add_argument("--only", choices=WAYS, help="one of the two")
    parser.add_argument("--work", type=Path, default=Path("runs/shrinking"), help="where checkpoints are kept")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    data, dense = load_dataset(VGG.dataset), arguments.work / DENSE
    if not exists(finished_stage(dense, DENSE)):
        torch.manual_seed(0)
        plan = Plan(DENSE, VGG.recipe, (DENSE,), precision=VGG.precision, rarely_evaluated=True)
        stage(VGG, plan, data, dense, arguments.device, VGG.build())
    if arguments.pretrain_only:
        return
    make_folder(arguments.rows.parent)
    for name in [arguments.only] if arguments.only else WAYS:
        network = replace(VGG, recipe=replace(VGG.recipe, shrink=WAYS[name]))
        plan = network.plan("bb", len(data.train), pretrain=False)
        (result,) = stage(network, plan, data, arguments.work / name, arguments.device, pretrained(VGG, dense)).results
        row = {**about(network), "precision": VGG.precision, **result, **surroundings(arguments.device)}
        append_row(arguments.rows, row)
        print(f"{name:9}  {row['error']:.2f} %  {sum(row['kept'])} units  {row['seconds']:.0f} s", flush=True)


def stage(network: Trained, plan: Plan, data: Dataset, folder: Path, device: torch.device, model: nn.Module) -> StagedRun:
    """Pretraining, or the pruning stage of a network, which is left as it is then; kept in a folder."""
    training, test = batches_of(data, network.recipe, device)
    with run_store(folder, {**about(network), "method": plan.method}) as store, ProgressBars() as watcher:
        (run,) = run_stages([model.to(device)], [plan], training, test, F.cross_entropy, store, watcher)
    return run


def about(network: Trained) -> dict[str, Any]:
    """What rows and folders say of a network."""
    return {"benchmark": "shrinking", **network.about(), "shrink": network.recipe.shrink}


if __name__ == "__main__":
    as_command(main)
