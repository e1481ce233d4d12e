"""Settings of baselines that no publication gives, chosen on the last 10,000 training images of MNIST; the test images are never looked at.

L0 on LeNet5-Caffe: the price of a weight in each of its four layers. CD on both networks: the length scale of the weights'
prior and the weight of the rates' entropy. Appends a row for each model to a JSONL file; `settings.py` has what was chosen.

    python -m benchmarks.tune_baselines --networks lenet-500-300 lenet5-caffe --last 3 --rows results/tuning.jsonl
    python -m benchmarks.tune_baselines --networks lenet5-caffe --methods l0 --first 4 --epochs 200 --rows results/tuning.jsonl
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bayesprune.cli import as_command
from bayesprune.data import Dataset, load_dataset
from bayesprune.experiments.main_job import RunConfig, batches_of, build_seeded, surroundings
from bayesprune.experiments.published import published_rows, tradeoff_value
from bayesprune.experiments.settings import Price
from bayesprune.storage import append_row, make_folder
from bayesprune.training.plan import DENSE, Plan, make_plan
from bayesprune.training.recipes import PAPER, Recipe
from bayesprune.training.stages import run_stages
from bayesprune.training.store import NoStore
from bayesprune.training.watching import ProgressBars

VALIDATION = 10_000
PRICES = (
    *(
        tuple(Price(factor) for factor in factors)
        for factors in (
            (1, 1, 1, 1),
            (20, 8, 1, 1),  # Those of the paper's other methods.
            (100, 5, 1, 1),  # L0-sep's prices (10, 0.5, 0.1, 10)/N over 0.1/N, but for the last layer's, and with it.
            (100, 5, 1, 100),
            (200, 10, 1, 10),
            (500, 15, 1, 10),
            (500, 15, 1, 30),
            (1000, 30, 1, 10),
        )
    ),
    (Price(10, fixed=True), Price(0.5, fixed=True), Price(1), Price(10)),  # L0-sep's for the convolutions, whatever the trade-off.
    (Price(10, fixed=True), Price(0.3, fixed=True), Price(1), Price(10)),
)
"""Of a weight in each layer."""
LENGTH_SCALES = (1e-2, 0.1, 0.3, 1.0, 2.0)
ENTROPY_WEIGHTS = (0.1, 1.0)


def candidates(
    network: str, method: str, n_data: int, sets: slice = slice(None)
) -> Iterator[tuple[dict[str, Any], str | None, dict[str, Any]]]:
    """What is tried: as a row says it, the trade-off as it is printed, hyper-parameters of the gates; of L0, these sets of prices."""
    if method == "cd":
        for length_scale, entropy_weight in itertools.product(LENGTH_SCALES, ENTROPY_WEIGHTS):
            tried = {"length_scale": length_scale, "entropy_weight": entropy_weight}
            yield tried, None, tried
        return
    printed = [row.tradeoff for row in published_rows(network, "mnist", "appendix") if row.method == method]
    for prices, tradeoff in itertools.product(PRICES[sets], printed):
        assert tradeoff is not None
        yield (
            {"prices": [str(price) for price in prices]},
            tradeoff,
            {"price": [price.at(tradeoff_value(tradeoff) * n_data) for price in prices]},
        )


def tune(
    network: str, methods: list[str], recipe: Recipe, data: Dataset, device: torch.device, seeds: list[int], sets: slice = slice(None)
) -> Iterator[dict[str, Any]]:
    """The rows of a network's methods."""
    training, validation = batches_of(data, recipe, device)
    with ProgressBars() as watcher:
        networks = [build_seeded(RunConfig(network=network, seed=seed), data).to(device) for seed in seeds]
        plans = [Plan(DENSE, recipe, ("dense",), seed) for seed in seeds]
        pretrained = dict(zip(seeds, run_stages(networks, plans, training, validation, F.cross_entropy, NoStore(), watcher), strict=True))
        for method in methods:
            tried = [(*each, seed) for each in candidates(network, method, len(data.train), sets) for seed in seeds]
            plans = [_plan(method, recipe, len(data.train), tradeoff, settings, seed) for _, tradeoff, settings, seed in tried]
            watcher.say(f"{network}, {method}: {len(tried)} models")
            models = [pretrained[seed].model for *_, seed in tried]
            runs = run_stages(models, plans, training, validation, F.cross_entropy, NoStore(), watcher)
            for (what, tradeoff, _, seed), run in zip(tried, runs, strict=True):
                result = {name: run.results[-1].get(name) for name in ("error", "kept", "speedup", "memory", "epochs", "seconds")}
                result["validation_error"] = result.pop("error")
                about = {"network": network, "dataset": data.name, "method": method, "tradeoff": tradeoff, "seed": seed}
                yield {"benchmark": "tune_baselines", **about, **what, **result, **surroundings(device)}


def _plan(method: str, recipe: Recipe, n_data: int, tradeoff: str | None, settings: dict[str, Any], seed: int) -> Plan:
    value = None if tradeoff is None else tradeoff_value(tradeoff)
    return make_plan(method, recipe, n_data, tradeoff=value, hyperparameters=settings, seed=seed, pretrain=False)


def main() -> None:
    """Tune what is asked for, and append the rows."""
    parser = argparse.ArgumentParser(description="Settings of baselines, on validation images.")
    parser.add_argument("--networks", nargs="+", default=["lenet-500-300", "lenet5-caffe"])
    parser.add_argument("--methods", nargs="+", default=["cd", "l0"])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first set of L0's prices to try")
    parser.add_argument("--last", type=int, default=len(PRICES) - 1, help="number of the last one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    arguments = parser.parse_args()
    make_folder(arguments.rows.parent)
    data = load_dataset("mnist", None).for_tuning(VALIDATION)
    sets = slice(arguments.first, arguments.last + 1)
    for network in arguments.networks:
        methods = [method for method in arguments.methods if method == "cd" or network == "lenet5-caffe"]
        recipe = PAPER.with_epochs(arguments.epochs)
        for row in tune(network, methods, recipe, data, torch.device(arguments.device), arguments.seeds, sets):
            append_row(arguments.rows, row)


if __name__ == "__main__":
    as_command(main)
