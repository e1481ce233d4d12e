"""Models that have lost units while they were trained say what they cost beside the whole network."""

import pytest
import torch
import torch.nn.functional as F

from bayesprune.cost import plain_cost, relative_cost
from bayesprune.data import Split, TensorBatches
from bayesprune.models.lenet import LeNet500300
from bayesprune.training import Recipe, StageRecipe, make_plan, run_stages
from bayesprune.training.store import NoStore
from bayesprune.training.watching import Silent

RECIPE = Recipe("tiny", {name: StageRecipe(epochs=3, lr=3e-3, gate_speed=20.0) for name in ("dense", "pruned", "dependent")}, shrink=True)


@pytest.mark.parametrize("count", [1, 2])
def test_sizes_are_relative_to_the_whole_network(count):
    torch.manual_seed(0)
    labels = torch.randint(0, 10, (300,))
    patterns = torch.randint(0, 2, (10, 1, 4, 4), dtype=torch.uint8) * 200
    batches = TensorBatches(Split(patterns[labels], labels), (0.5,), (0.25,), 50)
    models = [LeNet500300(widths=(30, 20), input_shape=(1, 4, 4)) for _ in range(count)]
    plans = [make_plan("dbb", RECIPE, 300, tradeoff=0.5, seed=seed) for seed in range(count)]
    runs = run_stages(models, plans, batches, batches, F.cross_entropy, NoStore(), Silent())
    layers = LeNet500300(widths=(30, 20), input_shape=(1, 4, 4)).layers()
    for run in runs:
        _, pruned, dependent = run.results
        assert pruned["removals"], "nothing was taken out, so nothing is tested"
        assert sum(pruned["kept"]) < 16 + 30 + 20
        assert pruned["speedup"] == pytest.approx(relative_cost(layers, pruned["kept"]).speedup)
        assert pruned["memory"] == pytest.approx(relative_cost(layers, pruned["kept"]).memory_percent)
        assert pruned["macs"] == plain_cost(layers, pruned["kept"]).macs
        assert dependent["speedup"] == pytest.approx(relative_cost(layers, pruned["kept"], dependent["kept"]).speedup)
        assert dependent["speedup"] > 1.0
