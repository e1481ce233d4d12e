"""What arrives at the gates of a model."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.gates import Gate, require_gates
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.prediction import evaluating


def unit_activations(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The activations of the units before each gate, averaged over positions, by the gate's name: ``(batch, units)``.

    The model runs in evaluation mode, so what a gate is given has passed the posterior-mean masks of those before it.

    Args:
        model: with gates; it is not changed.
        inputs: a batch.
    """
    found = require_gates(model)
    arrived: dict[str, Tensor] = {}
    hooks = [gate.register_forward_pre_hook(partial(_record, arrived, name)) for name, gate in found.items()]
    try:
        with torch.no_grad(), evaluating(model):
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: arrived[name] for name in found if name in arrived}


def dependent_gates(model: nn.Module) -> dict[str, DependentBetaBernoulli]:
    """The gates of a model that depend on the input, by name in network order."""
    return {name: gate for name, gate in require_gates(model).items() if isinstance(gate, DependentBetaBernoulli)}


def _record(arrived: dict[str, Tensor], name: str, gate: Gate, inputs: tuple[Any, ...]) -> None:
    arrived[name] = gate.units.mean(inputs[0])
