"""How many models a GPU holds side by side, measured."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from bayesprune.data import Split, TensorBatches
from bayesprune.experiments.main_job import RunConfig, check_config, plan_of
from bayesprune.models import build_network
from bayesprune.models.description import DescribedModel
from bayesprune.training.sources import first_inputs
from bayesprune.training.stages import put_gates_in
from bayesprune.training.trainer import StageTrainer

_FEW, _MORE = 2, 6
"""The memory of so many models is measured; it grows in proportion to their number."""
_USABLE = 0.7
"""Of the memory that is free: compiled and captured steps take somewhat more than those that are measured, and memory splinters."""


def models_that_fit(member: RunConfig, most: int) -> int:
    """How many models like this one can be trained side by side on its GPU.

    Args:
        member: one of them.
        most: beyond which there is nothing to gain.
    """
    device = torch.device(member.device)
    free, _ = torch.cuda.mem_get_info(device)
    return fitting(lambda count: _bytes_to_train(member, count), free, most)


def fitting(bytes_of: Callable[[int], int], free: int, most: int) -> int:
    """How many models fit.

    Args:
        bytes_of: the memory that so many models take.
        free: bytes.
        most: the answer is no larger, and at least 1.
    """
    if most <= _FEW:
        return most
    try:
        few, more = bytes_of(_FEW), bytes_of(_MORE)
    except torch.cuda.OutOfMemoryError:
        return 1
    each = max((more - few) / (_MORE - _FEW), 1.0)
    common = max(few - _FEW * each, 0.0)
    return max(1, min(most, int((_USABLE * free - common) / each)))


def _bytes_to_train(member: RunConfig, count: int) -> int:
    """The most memory that a step of so many models takes, with gates, as in the stage that needs most."""
    device = torch.device(member.device)
    recipe = check_config(member)
    plan = plan_of(member, recipe, recipe.batch_size)
    networks = [build_network(member.network) for _ in range(count)]
    assert isinstance(networks[0], DescribedModel)
    shape = tuple(networks[0].input_shape)
    split = Split(torch.zeros(recipe.batch_size, *shape, dtype=torch.uint8), torch.zeros(recipe.batch_size, dtype=torch.int64))
    batches = TensorBatches(split, (0.5,) * shape[0], (0.5,) * shape[0], recipe.batch_size, device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    models = [put_gates_in(network.to(device), plan, first_inputs(batches)) for network in networks]
    stage = replace(recipe.stages["pruned"], epochs=1)
    StageTrainer(models, batches, stage, F.cross_entropy, captured=False).train_epoch(lambda _loss: None)
    return torch.cuda.max_memory_allocated(device) - before
