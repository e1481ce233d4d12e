"""How good a model is, and how many of its units it uses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from math import isfinite
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.cost import plain_cost, relative_cost
from bayesprune.errors import InputError
from bayesprune.gates import Gate, gates
from bayesprune.models.description import DescribedModel
from bayesprune.prediction import evaluating
from bayesprune.training.distributed import ALONE
from bayesprune.training.labels import ignored_label
from bayesprune.training.members import Members
from bayesprune.training.rank_batches import RankBatches
from bayesprune.training.sources import BatchSource

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """A model on a data set.

    Attributes:
        loss: mean over samples; None where nothing was measured.
        error: misclassified samples in percent, without those whose label cross entropy ignores; None where the task is not classification.
        used: for each gate the units that a sample uses, on average: for static gates, those that it keeps.
    """

    loss: float | None
    error: float | None
    used: list[float]


def evaluate(model: nn.Module, source: BatchSource, loss: LossFunction) -> Evaluation:
    """Evaluate with the posterior-mean masks, counting for each sample the units that it uses."""
    return evaluate_members(Members([model]), source, loss)[0]


@torch.no_grad()
def evaluate_members(members: Members, source: BatchSource, loss: LossFunction) -> list[Evaluation]:
    """Evaluate every member; see ``evaluate``. Processes that share the source take turns at its batches."""
    measured = members.vectorised(partial(_measured, loss), shared=2)
    ranks = source.ranks if isinstance(source, RankBatches) else ALONE
    width = len(gates(members.first)) + 3
    rows: list[Tensor] = []
    samples = 0
    # A DataLoader draws from torch's global generator, whatever its order: that of the user stays as it is.
    with evaluating(members.first), torch.random.fork_rng(devices=[]):
        if not ranks.alone:
            torch.default_generator.manual_seed(0)  # All must see the same order.
        for number, (inputs, targets) in enumerate(source.in_order()):
            if number % ranks.size == ranks.rank:
                rows.append(measured(inputs, targets) * len(inputs))
            else:
                rows.append(torch.zeros((len(members), width), dtype=torch.float64, device=inputs.device))
            samples += len(inputs)
    if not rows:
        return [Evaluation(None, None, [])] * len(members)
    totals: Tensor = reduce(add, ranks.sum(torch.stack(rows)))
    return [Evaluation(mean, _percent(wrong, labelled), used) for mean, *used, wrong, labelled in (totals / samples).tolist()]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole > 0 else None


def _measured(loss: LossFunction, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch; for each gate, the units that a sample uses on average; the shares that are misclassified, and labelled.

    Where the task is not classification nothing counts as labelled.
    """
    found = gates(model)
    used = {name: inputs.new_zeros((), dtype=torch.float64) for name in found}
    hooks = [gate.register_forward_pre_hook(partial(_count, used, name)) for name, gate in found.items()]
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    value = mean_loss(loss, outputs, targets)
    classifying = isinstance(outputs, Tensor) and outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()
    shares = _wrong_and_labelled(outputs, targets, ignored_label(loss)) if classifying else [torch.zeros_like(value.double())] * 2
    return torch.stack([value.double(), *used.values(), *shares])


def _wrong_and_labelled(outputs: Tensor, targets: Tensor, ignored: int | None) -> list[Tensor]:
    """The shares of samples that are misclassified, and of those whose label is not the ignored one."""
    labelled = torch.ones_like(targets, dtype=torch.bool) if ignored is None else targets != ignored
    wrong = labelled & (outputs.argmax(dim=1) != targets)
    return [wrong.double().mean(), labelled.double().mean()]


def mean_loss(loss: LossFunction, outputs: Any, targets: Tensor) -> Tensor:
    """The mean loss of a batch.

    Raises:
        InputError: the loss is no tensor.
    """
    value = loss(outputs, targets)
    if not isinstance(value, Tensor):
        raise InputError(f"loss gives the loss of a batch as a tensor, not {type(value).__name__}: hand it over without .item() or float()")
    return value.mean()


def _count(used: dict[str, Tensor], name: str, gate: Gate, inputs: tuple[Any, ...]) -> None:
    used[name] = used[name] + gate.keep(inputs[0]).double().sum(dim=-1).mean()


@torch.no_grad()
def kept_units(members: Members) -> list[list[int]]:
    """For each member the units that its gates keep, whatever the input."""
    if not gates(members.first):
        return [[] for _ in range(len(members))]
    kept: list[list[int]] = members.apply(lambda model: torch.stack([gate.keep().sum() for gate in gates(model).values()])).tolist()
    return kept


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


def measure_size(model: nn.Module, kept: list[int], used: list[float]) -> Size:
    """The size of a model whose gates keep and use so many units, or, without gates, of the model as it is."""
    found = gates(model)
    places = model.gate_places() if isinstance(model, DescribedModel) else ()
    kept = kept if found else [place.units for place in places]
    dependent = used if any(gate.depends_on_input for gate in found.values()) else None
    shown: list[float] = [*kept] if dependent is None else [round(value, 3) for value in dependent]
    if not isinstance(model, DescribedModel) or len(kept) != len(places):
        return Size(shown)
    relative = relative_cost(model.layers(), kept, dependent)
    plain = plain_cost(model.layers(), kept, dependent)
    return Size(shown, relative.speedup, relative.memory_percent, plain.macs, plain.parameters)


def measure_members(
    members: Members, source: BatchSource | None, loss: LossFunction, whole: nn.Module | None = None
) -> list[dict[str, Any]]:
    """Error and size of every member now; where the task is not classification, the loss on the source in the place of an error.

    Args:
        members: to measure.
        source: to evaluate on; without it there is no error, and input-dependent gates count as their static ones.
        loss: of a batch.
        whole: a model like them with all its units, if they have lost some: sizes are relative to it.
    """
    kept = kept_units(members)
    evaluations = [Evaluation(None, None, list(map(float, each))) for each in kept]
    if source is not None:
        evaluations = evaluate_members(members, source, loss)
    measured = []
    for each, evaluation in zip(kept, evaluations, strict=True):
        size = measure_size(members.first if whole is None else whole, each, evaluation.used)
        instead = {} if evaluation.error is not None or evaluation.loss is None else {"validation_loss": _finite(evaluation.loss)}
        measured.append({"error": evaluation.error, **vars(size), **instead})
    return measured
