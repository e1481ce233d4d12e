"""One stage of training of one model, or of many side by side: epochs over a source of batches, resumable after any of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.data import EpochPlan, TensorBatches
from bayesprune.errors import DivergedError, StorageError
from bayesprune.gates import gates
from bayesprune.graph.layer_types import BATCH_NORMS
from bayesprune.noise import derive_seed
from bayesprune.objective import KLScale, gate_scales, linear_warmup, param_groups
from bayesprune.training.capture import CapturedEpoch
from bayesprune.training.devices import tensor_cores
from bayesprune.training.divergence import find_nonfinite
from bayesprune.training.evaluation import LossFunction
from bayesprune.training.members import Members
from bayesprune.training.rank_step import step_for
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import BatchSource
from bayesprune.training.store import MODEL, OPTIMIZER

_CHECK_EVERY = 50
_FLUSH_EVERY = 25
_TINY = 1e-20


class StageTrainer:
    """Trains models of one structure for one stage; a single model is a fleet of one.

    Everything random in an epoch, the order of the data, the gates' noise and torch's global generator, is a function of the member's seed
    and of the epoch's number, so a stage that is taken up after any epoch goes on exactly as if it had not stopped, and a member draws what
    it would draw alone.

    Args:
        models: trained in place.
        source: of the training batches.
        recipe: of the stage.
        loss: mean loss of a batch, from outputs and targets.
        kl_scales: factors on the divergence, for each of the models with gates.
        seeds: of this stage, for each of the models.
        rate_factors: on the learning rates, for each of the models.
        precision: the type to compute layers in.
        captured: run as one program on a GPU; by default wherever that is possible.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        source: BatchSource,
        recipe: StageRecipe,
        loss: LossFunction,
        *,
        kl_scales: Sequence[KLScale] | None = None,
        seeds: Sequence[int] | None = None,
        rate_factors: Sequence[float] | None = None,
        precision: torch.dtype = torch.float32,
        captured: bool | None = None,
    ) -> None:
        self.members = Members(models)
        self.first = self.members.first
        self.source, self.recipe, self.loss = source, recipe, loss
        self.seeds = list(range(len(models))) if seeds is None else list(seeds)
        self.epoch = 0
        self.diverged: dict[int, str] = {}
        """Members whose loss or weights are not finite any more, and where that began."""
        self.device = next(self.first.parameters()).device
        groups = param_groups(self.first, recipe.lr, weight_decay=recipe.weight_decay)
        for group in groups:
            group["lr"] *= recipe.gate_speed if group["name"] == "gates" else 1.0
        weights = _divergence_weights(models, kl_scales, source.n_data)
        self.step = step_for(source, self.members, loss, weights, groups, self.seeds, len(source), rate_factors, precision)
        self.frozen_norms = [
            module
            for module in self.first.modules()
            if isinstance(module, BATCH_NORMS) and any(gate.freezes_batch_norm for gate in gates(self.first).values())
        ]
        possible = self.device.type == "cuda" and isinstance(source, TensorBatches) and source.n_data >= source.batch_size
        self.captures = possible if captured is None else captured and possible
        self._program: CapturedEpoch | None = None
        self._next_plan: EpochPlan | None = None
        self.step.keys.release()

    @property
    def finished(self) -> bool:
        return self.epoch >= self.recipe.epochs

    def train_epoch(self, on_step: Callable[[float], None]) -> list[float]:
        """Train one epoch and return the mean loss of each member.

        A member of several that diverges is set aside: ``diverged`` says why, and the others go on untouched.

        Args:
            on_step: called with a recent value of the loss after every step.

        Raises:
            DivergedError: the loss of the only model became NaN or infinite; says where that began.
        """
        self.first.train()
        for norm in self.frozen_norms:
            norm.eval()
        steps = len(self.source)
        shares = [(self.epoch + step / steps) / self.recipe.epochs for step in range(steps)]
        warmup_steps = int(self.recipe.kl_warmup * self.recipe.epochs * steps)
        self.step.begin(
            self.step.keys.for_steps(self.epoch * steps, steps),
            torch.tensor([self.recipe.rate_factor(share) for share in shares]),
            torch.tensor([linear_warmup(self.epoch * steps + step, warmup_steps) for step in range(steps)]),
        )
        with self._own_noise(), tensor_cores(self.device):
            inputs = self._run_captured(on_step) if self.captures else self._run_plainly(on_step)
            self._check_members(inputs)
        self.epoch += 1
        return [float(total) / steps for total in self.step.total]

    def _run_plainly(self, on_step: Callable[[float], None]) -> Tensor:
        steps = len(self.source)
        for step, (inputs, targets) in enumerate(self.source.epoch(self.seeds, self.epoch)):
            losses = self.step.losses(inputs, targets)
            # Before the update, which would carry a NaN into every parameter. Looking at the loss makes a GPU wait; on the processor it
            # costs nothing.
            if self.device.type == "cpu" or step % _CHECK_EVERY == 0 or step + 1 == steps:
                values = (losses + self.step.total if self.device.type != "cpu" else losses).tolist()
                self._check_losses(values, inputs, step)
            self.step.update(losses)
            on_step(values[0])
            if self.device.type == "cpu" and step % _FLUSH_EVERY == 0:
                self._flush_tiny()
        return inputs

    def _run_captured(self, on_step: Callable[[float], None]) -> Tensor:
        assert isinstance(self.source, TensorBatches)
        plan = self._next_plan or self.source.plan(self.seeds, self.epoch)
        if self._program is None:
            self._program = CapturedEpoch(self.step, self.source, plan)
        self._program.run(plan)
        self._next_plan = self.source.plan(self.seeds, self.epoch + 1)  # While the device is at work.
        for _ in range(len(self.source)):
            on_step(0.0)
        inputs, _ = self.source.planned(self._program.plan, self._program.offsets)
        return inputs

    def state(self) -> dict[str, Tensor]:
        """All tensors of the stage: the models' states and the optimiser's, stacked where there are several."""
        kept = self.first.state_dict()
        own = self.members.parameters | self.members.buffers
        tensors = {MODEL + name: own.get(name, tensor) for name, tensor in kept.items()}
        for name, parameter in self.members.parameters.items():
            for key, tensor in self.step.optimizer.state.get(parameter, {}).items():
                tensors[f"{OPTIMIZER}{key}/{name}"] = tensor
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], epoch: int, diverged: Mapping[str, str] | None = None) -> None:
        """Take up a stage after ``epoch`` epochs, from what ``state`` gave, with these members set aside."""
        load_members(self.members, tensors)
        for name, parameter in self.members.parameters.items():
            keys = [key for key in tensors if key.startswith(OPTIMIZER) and key.split("/", 2)[2] == name]
            if keys:
                # Adam's step counter lives where the optimiser put it; the moments live with their parameter.
                self.step.optimizer.state[parameter] = {key.split("/")[1]: tensors[key].to(self.device).clone() for key in keys}
        self.epoch, self._next_plan = epoch, None
        self.diverged = {int(member): reason for member, reason in (diverged or {}).items()}

    @torch.no_grad()
    def _flush_tiny(self) -> None:
        """Set weights and moments far below rounding to zero.

        The weights of pruned units decay into denormal numbers, with which a processor computes many times slower.
        """
        for parameter in self.members.parameters.values():
            for tensor in (parameter, *self.step.optimizer.state.get(parameter, {}).values()):
                if tensor.ndim > 1:
                    tensor.masked_fill_(tensor.abs() < (_TINY if tensor is parameter else _TINY**1.5), 0.0)

    @contextmanager
    def _own_noise(self) -> Iterator[None]:
        """Noise of this epoch alone: keys for the gates, a seed for torch's global generator, whose state comes back afterwards."""
        devices = [self.device] if self.device.type == "cuda" else []
        self.step.keys.attach()
        try:
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(derive_seed(self.seeds[0], "epoch", self.epoch))
                yield
        finally:
            self.step.keys.release()

    def _check_losses(self, losses: list[float], inputs: Tensor, step: int) -> None:
        for member, loss in enumerate(losses):
            if not math.isfinite(loss) and member not in self.diverged:
                where = f"the loss became {loss} in epoch {self.epoch + 1}, step {step + 1}; it began in"
                self._set_aside(member, where, inputs)

    def _check_members(self, inputs: Tensor) -> None:
        """A gradient may be NaN where its loss is finite: what the last update of an epoch did shows in no loss before it is stored."""
        finite = self.members.apply(lambda model: torch.stack([p.isfinite().all() for p in model.parameters()]).all()).tolist()
        for member, (total, sound) in enumerate(zip(self.step.total.tolist(), finite, strict=True)):
            if member in self.diverged or (sound and math.isfinite(total)):
                continue
            if math.isfinite(total):
                self._set_aside(member, f"the last update of epoch {self.epoch + 1} was not finite; it shows in", inputs)
            else:
                self._set_aside(member, f"the loss became {total} in epoch {self.epoch + 1}; it shows in", inputs)

    def _set_aside(self, member: int, where: str, inputs: Tensor) -> None:
        model = self.members.write_back()[member]
        model.train(self.first.training)
        message = f"{where} {find_nonfinite(model, self.step.whole(inputs)[member])}"
        if self.members.alone:
            raise DivergedError(message)
        self.diverged[member] = message


def _divergence_weights(models: Sequence[nn.Module], kl_scales: Sequence[KLScale] | None, n_data: int) -> Tensor:
    """The factor on the divergence of each gate of each model, per datum."""
    if not gates(models[0]):
        return torch.zeros(len(models), 0)
    scales = [1.0] * len(models) if kl_scales is None else kl_scales
    return torch.tensor([list(gate_scales(model, scale).values()) for model, scale in zip(models, scales, strict=True)]) / n_data


@torch.no_grad()
def load_members(members: Members, tensors: Mapping[str, Any]) -> None:
    """Load the models' part of a checkpoint."""
    state = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    if members.alone:
        _load(members.first, state)
        return
    for index, model in enumerate(members.models):
        _load(model, {name: tensor[index] for name, tensor in state.items()})
    for name, stacked in (members.parameters | members.buffers).items():
        if name in state:
            stacked.copy_(state[name])


def _load(model: nn.Module, state: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise StorageError(f"the checkpoint does not belong to this model: {' '.join(str(error).split())}") from error
