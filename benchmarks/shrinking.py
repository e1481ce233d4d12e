"""What shrinking while training saves: BB on VGG-like and CIFAR-10, with and without it, from the same pretrained network.

The network that shrinks is the one that benchmarks/per_input trains; here its pruning stage is done once more with a network that stays
whole. For comparable times both have to be trained with the machine to themselves. Appends two rows to a JSONL file:

    BAYESPRUNE_DATA=... python -m benchmarks.shrinking --rows results/shrinking.jsonl
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bayesprune.cli import as_command
from bayesprune.data import Dataset, load_dataset
from bayesprune.experiments.main_job import batches_of, surroundings
from bayesprune.storage import append_row, exists, make_folder, read_tensors
from bayesprune.training.stages import run_stages
from bayesprune.training.store import finished_stage, run_store
from bayesprune.training.watching import ProgressBars
from benchmarks.per_input.networks import TRAINED, Trained, pretrained, trained

VGG = next(network for network in TRAINED if network.name == "vgg-like")


def main() -> None:
    """Train what is missing, and append the rows of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    parser.add_argument("--work", type=Path, default=Path("runs/per-input"), help="where the trained networks are kept")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    data = load_dataset(VGG.dataset)
    finished = finished_stage(VGG.checkpoints(arguments.work), "pruned")
    if not exists(finished):
        trained(VGG, data, arguments.work, arguments.device)
    shrunk = read_tensors(finished)[1]["results"][0]
    whole = pruned_whole(VGG, data, arguments.work, arguments.device)
    make_folder(arguments.rows.parent)
    for shrinks, result in ((True, shrunk), (False, whole)):
        about = {"benchmark": "shrinking", "network": VGG.name, "dataset": VGG.dataset, "method": "bb", "tradeoff": VGG.tradeoff}
        row = {**about, "shrink": shrinks, "precision": VGG.precision, **result, **surroundings(arguments.device)}
        append_row(arguments.rows, row)
        print(f"shrinking {shrinks!s:5}  {row['error']:.2f} %  {sum(row['kept'])} units  {row['seconds']:.0f} s", flush=True)


def pruned_whole(network: Trained, data: Dataset, folder: Path, device: torch.device) -> dict[str, Any]:
    """The row of the pruning stage from the same pretrained network, which stays whole."""
    whole = replace(network, recipe=replace(network.recipe, shrink=False))
    training, test = batches_of(data, whole.recipe, device)
    model = pretrained(network, network.checkpoints(folder)).to(device)
    with run_store(folder / f"{network.name}-whole-checkpoints", {**whole.about(), "shrink": False}) as store, ProgressBars() as watcher:
        (run,) = run_stages([model], [whole.plan("bb", len(data.train), pretrain=False)], training, test, F.cross_entropy, store, watcher)
    return run.results[0]


if __name__ == "__main__":
    as_command(main)
