"""How good a model is, and how many of its units it uses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.cost import plain_cost, relative_cost
from bayesprune.gates import Gate, gates
from bayesprune.models.description import DescribedModel
from bayesprune.prediction import evaluating
from bayesprune.training.sources import BatchSource

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """A model on a data set.

    Attributes:
        loss: mean over samples.
        error: misclassified samples in percent; None where the task is not classification.
        used: for each gate the units that a sample uses, on average: for static gates, those that it keeps.
    """

    loss: float
    error: float | None
    used: list[float]


@torch.no_grad()
def evaluate(model: nn.Module, source: BatchSource, loss: LossFunction) -> Evaluation:
    """Evaluate with the posterior-mean masks, counting for each sample the units that it uses."""
    found = gates(model)
    used = dict.fromkeys(found, 0.0)
    hooks = [gate.register_forward_pre_hook(partial(_count, used, name)) for name, gate in found.items()]
    total_loss = wrong = samples = 0.0
    classifying = True
    try:
        # A DataLoader draws from torch's global generator, whatever its order: that of the user stays as it is.
        with evaluating(model), torch.random.fork_rng(devices=[]):
            for inputs, targets in source.in_order():
                outputs = model(inputs)
                samples += len(inputs)
                total_loss += float(loss(outputs, targets)) * len(inputs)
                classifying = classifying and outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()
                if classifying:
                    wrong += int((outputs.argmax(dim=1) != targets).sum())
    finally:
        for hook in hooks:
            hook.remove()
    count = max(samples, 1.0)
    return Evaluation(total_loss / count, 100.0 * wrong / count if classifying else None, [total / count for total in used.values()])


def _count(used: dict[str, float], name: str, gate: Gate, inputs: tuple[Any, ...]) -> None:
    kept = gate.keep(inputs[0])
    used[name] += float(kept.sum()) * (1 if kept.ndim == 2 else len(inputs[0]))


@dataclass(frozen=True)
class Size:
    """What a gated model costs with the pruned units gone; None where the model does not state its layers.

    Attributes:
        kept: for each gate the units in use; averages for input-dependent gates.
        speedup: dense over pruned FLOPs, the paper's convention.
        memory: in percent, the paper's convention.
        macs: multiply-accumulates for one input.
        parameters: that must be stored.
    """

    kept: list[float]
    speedup: float | None = None
    memory: float | None = None
    macs: int | None = None
    parameters: int | None = None


def measure_size(model: nn.Module, used: list[float]) -> Size:
    """The size of a model whose gates use so many units, or, without gates, of the model as it is."""
    found = gates(model)
    places = model.gate_places() if isinstance(model, DescribedModel) else ()
    kept: list[float] = [int(gate.keep().sum()) for gate in found.values()] if found else [place.units for place in places]
    dependent = used if any(gate.depends_on_input for gate in found.values()) else None
    shown = kept if dependent is None else [round(value, 3) for value in dependent]
    if not isinstance(model, DescribedModel) or len(kept) != len(places):
        return Size(shown)
    relative = relative_cost(model.layers(), kept, dependent)
    plain = plain_cost(model.layers(), kept, dependent)
    return Size(shown, relative.speedup, relative.memory_percent, plain.macs, plain.parameters)
