"""One stage of training: epochs over a source of batches, resumable after any of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.errors import DivergedError, StorageError
from bayesprune.gates import gates
from bayesprune.graph.layer_types import BATCH_NORMS
from bayesprune.noise import NoiseKeys, derive_seed
from bayesprune.objective import KLScale, linear_warmup, negative_elbo, param_groups
from bayesprune.training.divergence import find_nonfinite
from bayesprune.training.evaluation import LossFunction
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import BatchSource
from bayesprune.training.store import MODEL, OPTIMIZER

_CHECK_EVERY = 50
_FLUSH_EVERY = 25
_TINY = 1e-20


class StageTrainer:
    """Trains a model for one stage.

    Everything random in an epoch, the order of the data, the gates' noise and torch's global generator, is a function of the seed and of
    the epoch's number, so a stage that is taken up after any epoch goes on exactly as if it had not stopped.

    Args:
        model: trained in place.
        source: of the training batches.
        recipe: of the stage.
        loss: mean loss of a batch, from outputs and targets.
        kl_scale: factors on the divergence, for a model with gates.
        seed: of this stage.
    """

    def __init__(
        self, model: nn.Module, source: BatchSource, recipe: StageRecipe, loss: LossFunction, *, kl_scale: KLScale = 1.0, seed: int = 0
    ) -> None:
        self.model, self.source, self.recipe, self.loss = model, source, recipe, loss
        self.kl_scale, self.seed = kl_scale, seed
        self.epoch = 0
        self.device = next(model.parameters()).device
        self.gated = bool(gates(model))
        groups = param_groups(model, recipe.lr, weight_decay=recipe.weight_decay)
        self.rates = [group["lr"] * (recipe.gate_speed if group["name"] == "gates" else 1.0) for group in groups]
        self.optimizer = torch.optim.Adam(groups, fused=True)
        self.frozen_norms = [
            module
            for module in model.modules()
            if isinstance(module, BATCH_NORMS) and any(gate.freezes_batch_norm for gate in gates(model).values())
        ]

    @property
    def finished(self) -> bool:
        return self.epoch >= self.recipe.epochs

    def train_epoch(self, on_step: Callable[[float], None]) -> float:
        """Train one epoch and return its mean loss.

        Args:
            on_step: called with a recent value of the loss after every step.

        Raises:
            DivergedError: the loss became NaN or infinite; says where that began.
        """
        self.model.train()
        for norm in self.frozen_norms:
            norm.eval()
        steps = len(self.source)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with self._own_noise(steps) as keys:
            for step, (inputs, targets) in enumerate(self.source.epoch(self.seed, self.epoch)):
                keys(step)
                self._set_rates((self.epoch + step / steps) / self.recipe.epochs)
                objective = self._objective(inputs, targets, self.epoch * steps + step)
                value = objective.detach()
                total += value
                # Before the update, which would carry a NaN into every parameter. Looking at the loss makes a GPU wait; on the processor
                # it costs nothing.
                if self.device.type == "cpu" or step % _CHECK_EVERY == 0 or step + 1 == steps:
                    recent = float(value)
                    self._check(float(total), inputs, step)
                self._update(objective)
                on_step(recent)
                if self.device.type == "cpu" and step % _FLUSH_EVERY == 0:
                    self._flush_tiny()
        self._check_parameters(inputs)
        self.epoch += 1
        return float(total) / steps

    def state(self) -> dict[str, Tensor]:
        """All tensors of the stage: the model's state and the optimiser's."""
        tensors = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, tensor in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{OPTIMIZER}{key}/{name}"] = tensor
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], epoch: int) -> None:
        """Take up a stage after ``epoch`` epochs, from what ``state`` gave."""
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            keys = [key for key in tensors if key.startswith(OPTIMIZER) and key.split("/", 2)[2] == name]
            if keys:
                # Adam's step counter lives where the optimiser put it; the moments live with their parameter.
                self.optimizer.state[parameter] = {key.split("/")[1]: tensors[key].to(self.device).clone() for key in keys}
        self.epoch = epoch

    def _objective(self, inputs: Tensor, targets: Tensor, global_step: int) -> Tensor:
        nll = self.loss(self.model(inputs), targets)
        if not self.gated:
            return nll
        warmup = linear_warmup(global_step, int(self.recipe.kl_warmup * self.recipe.epochs * len(self.source)))
        return negative_elbo(nll, self.model, self.source.n_data, self.kl_scale, warmup)

    def _update(self, objective: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        objective.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def _flush_tiny(self) -> None:
        """Set weights and moments far below rounding to zero.

        The weights of pruned units decay into denormal numbers, with which a processor computes many times slower.
        """
        for parameter in self.model.parameters():
            for tensor in (parameter, *self.optimizer.state.get(parameter, {}).values()):
                if tensor.ndim > 1:
                    tensor.masked_fill_(tensor.abs() < (_TINY if tensor is parameter else _TINY**1.5), 0.0)

    def _set_rates(self, progress: float) -> None:
        factor = self.recipe.rate_factor(progress)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    @contextmanager
    def _own_noise(self, steps: int) -> Iterator[Callable[[int], None]]:
        """Noise of this epoch alone: keys for the gates, a seed for torch's global generator, whose state comes back afterwards."""
        keys = NoiseKeys(self.model, self.seed, self.device)
        table = keys.for_steps(self.epoch * steps, steps)
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(derive_seed(self.seed, "epoch", self.epoch))
                yield lambda step: keys.set(table[step])
        finally:
            keys.release()

    def _check(self, loss: float, inputs: Tensor, step: int) -> None:
        if math.isfinite(loss):
            return
        place = find_nonfinite(self.model, inputs)
        raise DivergedError(f"the loss became {loss} in epoch {self.epoch + 1}, step {step + 1}; it began in {place}")

    def _check_parameters(self, inputs: Tensor) -> None:
        """A gradient may be NaN where its loss is finite: what the last update of an epoch did shows in no loss before it is stored."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            place = find_nonfinite(self.model, inputs)
            raise DivergedError(f"the last update of epoch {self.epoch + 1} was not finite; it shows in {place}")


def load_model(model: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Load the model's part of a checkpoint."""
    state = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise StorageError(f"the checkpoint does not belong to this model: {' '.join(str(error).split())}") from error
