"""One step of training of all members: forward, backward, update."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bayesprune.errors import InputError
from bayesprune.gates import gates
from bayesprune.gates.collection import divergences
from bayesprune.noise import NoiseKeys
from bayesprune.objective import disagreement, uphill
from bayesprune.training.evaluation import LossFunction, mean_loss
from bayesprune.training.members import Members


class Step:
    """A step that reads all it needs, noise keys and learning rates included, from tables on the device.

    Nothing that changes from step to step is a number of Python's, so that a step can be compiled, or captured once and replayed.

    Args:
        members: trained in place.
        loss: mean loss of a batch, from outputs and targets.
        divergence_weights: of each gate's divergence in the objective, of shape (members, gates).
        groups: parameter groups of the first member, with the rates at the start of the schedule.
        seeds: of the members' noise.
        steps: of an epoch.
        rate_factors: on the learning rates of each member.
        precision: the type to compute layers in.
        consistency: for each member the weight of the disagreement between two draws of the masks; see ``StageRecipe``.
        perturbation: for each member how far the second of the two inputs is moved; see ``StageRecipe``.
    """

    def __init__(
        self,
        members: Members,
        loss: LossFunction,
        *,
        divergence_weights: Tensor,
        groups: list[dict[str, object]],
        seeds: Sequence[int],
        steps: int,
        rate_factors: Sequence[float] | None = None,
        precision: torch.dtype = torch.float32,
        consistency: Sequence[float] = (),
        perturbation: Sequence[float] = (),
    ) -> None:
        self.members = members
        device = next(iter(members.parameters.values())).device
        self.weights = divergence_weights.to(device)
        self.factors = None if rate_factors is None or set(rate_factors) == {1.0} else torch.tensor(rate_factors, device=device)
        self.shown_once = torch.zeros(len(members), 0, device=device)
        self.perturbation = torch.tensor(perturbation, device=device) if any(perturbation) else self.shown_once
        self.consistency = torch.tensor(consistency, device=device) if any((*consistency, *perturbation)) else self.shown_once
        self.objective = members.vectorised(partial(objective, loss, device.type, precision))
        self.keys = NoiseKeys(members.first, seeds, device)
        if not members.alone:
            members.buffers |= self.keys.buffers
        self.key_table = torch.zeros((steps, *self.keys.current.shape), dtype=torch.int32, device=device)
        self.rate_table, self.warmup_table = torch.ones(steps, device=device), torch.ones(steps, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros(len(members), dtype=torch.float64, device=device)
        names = {id(parameter): name for name, parameter in members.first.named_parameters()}
        stacked = [{**group, "params": [members.parameters[names[id(p)]] for p in group["params"]]} for group in groups]  # type: ignore[attr-defined]
        self.rates = [torch.tensor(float(group["lr"]), device=device) for group in groups]  # type: ignore[arg-type]
        for group, rate in zip(stacked, self.rates, strict=True):
            group["lr"] = rate.clone()
        self.optimizer = torch.optim.Adam(stacked, fused=True, capturable=device.type == "cuda")

    def begin(self, keys: Tensor, rates: Tensor, warmups: Tensor) -> None:
        """Start an epoch: noise keys, factors on the learning rates and on the divergence for each of its steps."""
        self.key_table.copy_(keys)
        self.rate_table.copy_(rates)
        self.warmup_table.copy_(warmups)
        self.position.zero_()
        self.total.zero_()

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The objective of every member for its batch."""
        self.keys.set(self.key_table.index_select(0, self.position)[0])
        weights = self.weights * self.warmup_table.index_select(0, self.position)
        if self.consistency.numel():
            second = self._moved(inputs, targets, weights) if self.perturbation.numel() else inputs
            inputs, targets = torch.cat([inputs, second], dim=1), torch.cat([targets, targets], dim=1)
        return self.objective(inputs, targets, weights, self.consistency)  # type: ignore[no-any-return]

    def _moved(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The inputs, moved to where their loss is greater. Finding out where leaves no trace in running statistics."""
        check_movable(inputs)
        here = inputs.detach().requires_grad_()
        with self.members.buffers_restored():
            losses = self.objective(here.clone(), targets, weights, self.shown_once)  # A copy, because a model may work in place.
            gradient = gradient_of(losses, here)
        distances = self.perturbation[:, None].expand(inputs.shape[:2])
        return inputs + uphill(gradient.flatten(0, 1), distances.flatten()).view_as(inputs)

    def whole(self, inputs: Tensor) -> Tensor:
        """The inputs of the batch that ``losses`` was given a part of: here, all of it."""
        return inputs

    def update(self, losses: Tensor) -> None:
        """Follow the gradient of each member's objective, and go on to the next step."""
        if not losses.requires_grad:
            raise InputError("the loss does not depend on what is trained: is it, or the model, computed under no_grad() or with detach()?")
        self.optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        factor = self.rate_table.index_select(0, self.position)[0]
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"].copy_(rate * factor)
        if self.factors is None:
            self.optimizer.step()
        else:
            self._step_at_own_rates(self.factors)
        self.total += losses.detach()
        self.position += 1

    @torch.no_grad()
    def _step_at_own_rates(self, factors: Tensor) -> None:
        """Adam's step is linear in the learning rate, so each member's part of a common step is scaled afterwards."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        before = [parameter.clone() for parameter in parameters]
        self.optimizer.step()
        for parameter, old in zip(parameters, before, strict=True):
            factor = factors[0] if self.members.alone else factors.view(-1, *[1] * (parameter.ndim - 1))
            parameter.copy_(torch.lerp(old, parameter, factor.to(parameter.dtype)))


def objective(
    loss: LossFunction,
    device: str,
    precision: torch.dtype,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    consistency: Tensor,
) -> Tensor:
    """The negative evidence lower bound per datum of one model; see ``negative_elbo``.

    Args:
        loss: mean loss of a batch, from outputs and targets.
        device: its type.
        precision: the type to compute layers in.
        model: with or without gates.
        inputs: of the batch.
        targets: of the batch.
        weights: on the divergence of each gate: its scale over the number of data.
        consistency: unless it is empty, the batch is there twice, and this is the weight of the disagreement of the two predictions.
    """
    with torch.autocast(device, precision, enabled=precision != torch.float32):
        outputs = model(inputs)
    outputs = outputs if precision == torch.float32 else tree_map_only(Tensor, _in_full, outputs)
    value = mean_loss(loss, outputs, targets)
    if consistency.numel():
        check_classes(targets, outputs)
        value = value + consistency * disagreement(outputs)
    found = divergences(list(gates(model).values()))
    return value + sum(weight * divergence for weight, divergence in zip(weights.unbind(), found, strict=True)) if found else value


def _in_full(output: Tensor) -> Tensor:
    """A loss is computed in float32."""
    return output.float() if output.is_floating_point() else output


def check_classes(targets: Any, outputs: Any = None) -> None:
    """Refuse targets, or outputs, that a recipe which shows batches twice cannot be used with."""
    classes = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    if not classes or not (outputs is None or (isinstance(outputs, Tensor) and outputs.ndim == 2)):
        raise InputError(
            "a recipe that shows batches twice (consistency, perturbation) is for classification: outputs of shape (batch, classes) and "
            "whole numbers as targets"
        )


def check_movable(inputs: Any) -> None:
    """Refuse inputs that a recipe with a perturbation cannot be used with."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        what = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"a recipe with a perturbation moves every input a little: inputs are floating-point tensors then, not {what}")


def gradient_of(losses: Tensor, inputs: Tensor) -> Tensor:
    """The gradient of a model's loss with respect to its inputs."""
    found = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)[0] if losses.requires_grad else None
    if found is None:
        raise InputError(
            "a recipe with a perturbation moves inputs to where the loss is greater, but no gradient reaches the model's inputs: is a part "
            "of it computed under torch.no_grad()? Choose another recipe"
        )
    return found
