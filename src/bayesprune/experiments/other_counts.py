"""Counts beside the published ones, of the same models: pruned at other thresholds, L0's soft count, and both counts of DBB's memory."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bayesprune.cost import relative_cost
from bayesprune.gates import gates
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.models.description import DescribedModel
from bayesprune.training.evaluation import LossFunction, measure_members
from bayesprune.training.members import Members
from bayesprune.training.sources import BatchSource

THRESHOLDS = (1e-2, 1e-4)
"""Of the paper's footnote: instead of 1e-3 they made no difference."""
_MEASURED = ("error", "kept", "speedup", "memory")


def other_counts(method: str, models: Sequence[nn.Module], test: BatchSource, loss: LossFunction) -> list[dict[str, Any]]:
    """What the rows of a method's models say beside the published counts: nothing for most methods."""
    if method in ("bb", "dbb") and models:
        return at_other_thresholds(models, test, loss)
    return [soft_count(model) for model in models] if method == "l0" else [{} for _ in models]


def at_other_thresholds(models: Sequence[nn.Module], test: BatchSource, loss: LossFunction) -> list[dict[str, Any]]:
    """For each model error, units and cost if it were pruned at other thresholds; the models stay as they are."""
    found: list[dict[str, Any]] = [{} for _ in models]
    own = [gate for model in models for gate in gates(model).values() if isinstance(gate, (BetaBernoulli, DependentBetaBernoulli))]
    before = [gate.threshold for gate in own]
    try:
        for threshold in THRESHOLDS:
            for gate in own:
                gate.threshold = threshold
            for each, measured in zip(found, measure_members(Members(models), test, loss), strict=True):
                each[str(threshold)] = {name: measured[name] for name in _MEASURED}
    finally:
        for gate, threshold in zip(own, before, strict=True):
            gate.threshold = threshold
    return [{"thresholds": each} for each in found]


@torch.no_grad()
def soft_count(model: nn.Module) -> dict[str, Any]:
    """The paper's count of L0's units: not those whose gate is above zero, but the sum of the gates, rounded down."""
    assert isinstance(model, DescribedModel)
    kept = [math.floor(float(gate.mean_mask(torch.empty(0)).double().sum())) for gate in gates(model).values()]
    cost = relative_cost(model.layers(), kept)
    return {"soft": {"kept": kept, "speedup": round(cost.speedup, 4), "memory": round(cost.memory_percent, 4)}}


def both_memories(model: nn.Module, kept: Sequence[float], used: Sequence[float], memory: float) -> dict[str, float]:
    """The memory of a DBB model as the paper counts it, one gate off, and as it is; nothing for a network where the two are one.

    Args:
        model: with gates.
        kept: by the static gates below.
        used: for an input on average.
        memory: as it was measured.
    """
    assert isinstance(model, DescribedModel)
    right, published = (relative_cost(model.layers(), kept, used, published_memory_indexing=off).memory_percent for off in (False, True))
    return {} if right == published else {"memory": round(published, 4), "right_memory": memory}
