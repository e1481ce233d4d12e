"""One stage of training of one model, or of many side by side: epochs over a source of batches, resumable after any of them."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.data import EpochPlan, TensorBatches
from bayesprune.errors import DivergedError
from bayesprune.gates import gates
from bayesprune.graph.layer_types import BATCH_NORMS
from bayesprune.narrowing.copies import Narrow
from bayesprune.narrowing.shrinking import Shrinking
from bayesprune.noise import derive_seed
from bayesprune.objective import KLScale, gate_scales, linear_warmup, param_groups
from bayesprune.training.capture import CapturedEpoch, captured_epoch
from bayesprune.training.compilation import CompiledObjective, gains_from_compiling
from bayesprune.training.devices import tensor_cores
from bayesprune.training.divergence import find_nonfinite
from bayesprune.training.evaluation import LossFunction
from bayesprune.training.loading import load_members
from bayesprune.training.members import Members
from bayesprune.training.memory_format import give_back, lay_out
from bayesprune.training.modes import start_training
from bayesprune.training.moments import Moments, read_moments, write_moments
from bayesprune.training.rank_step import step_for
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import BatchSource, first_inputs
from bayesprune.training.store import KEPT, MODEL, OPTIMIZER

_CHECK_EVERY = 50
_FLUSH_EVERY = 25
_TINY = 1e-20
_LOOK_AT = 0.75
"""The share of an epoch after which units that are to be removed at its end must be out of use already."""
_ALIGNMENT = 8
"""Of the widths on a GPU, whose tensor cores want it."""
_GAIN_ON_GPU = 0.2
"""How much of a captured step goes with the weights: without 84 % of them, one of VGG-like takes 17 % less."""
_SLOWLY = 0.05
"""The part of the weights below which a removal is no reason to wait with compiling for the next."""


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
        consistency: its weight, for each of the models; by default the recipe's.
        perturbation: how far inputs are moved, for each of the models; by default the recipe's.
        precision: the type to compute layers in.
        captured: run as one program on a GPU; by default wherever that is possible.
        compiled: compile steps on a processor too, where enough of them are to come. What is trained is then the same up to rounding only.
        shrink: take units that are pruned and stay so out of the models while they are trained.
        resting: the parts of a model that stay in evaluation mode, by path.
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
        consistency: Sequence[float] | None = None,
        perturbation: Sequence[float] | None = None,
        precision: torch.dtype = torch.float32,
        captured: bool | None = None,
        compiled: bool = False,
        shrink: bool = False,
        resting: Collection[str] = (),
    ) -> None:
        self.models = list(models)
        self.source, self.recipe, self.loss = source, recipe, loss
        self.seeds = list(range(len(models))) if seeds is None else list(seeds)
        self.epoch = 0
        self.diverged: dict[int, str] = {}
        """Members whose loss or weights are not finite any more, and where that began."""
        self.device = next(models[0].parameters()).device
        self.kl_scales, self.rate_factors, self.precision, self.resting = kl_scales, rate_factors, precision, resting
        self.consistency = [recipe.consistency] * len(models) if consistency is None else list(consistency)
        self.perturbation = [recipe.perturbation] * len(models) if perturbation is None else list(perturbation)
        self._laid_out = lay_out(models[0], source, precision) if len(models) == 1 else []
        self._train_together(models)
        possible = isinstance(source, TensorBatches) and source.n_data >= source.batch_size
        self.captures = possible and self.device.type == "cuda" and captured is not False
        self.compiles = possible and self.device.type == "cpu" and compiled
        self._next_plan: EpochPlan | None = None
        self.shrinking = None
        if shrink and gates(models[0]):
            self.shrinking = Shrinking(models, first_inputs(source), _ALIGNMENT if self.device.type == "cuda" else 1)
        self.removals: list[dict[str, Any]] = []
        """How many units of each gate the models had left, whenever some were taken out, and after which epoch."""
        self._alive: dict[str, Tensor] = {}
        self._began = self._seconds = self._thinned = 0.0

    def _train_together(self, models: Sequence[nn.Module]) -> None:
        """Make the step of these models."""
        self.members = Members(models)
        self.first = self.members.first
        groups = param_groups(self.first, self.recipe.lr, weight_decay=self.recipe.weight_decay)
        for group in groups:
            group["lr"] *= self.recipe.gate_speed if group["name"] == "gates" else 1.0
        weights = _divergence_weights(models, self.kl_scales, self.source.n_data)
        self.step = step_for(
            self.source,
            self.members,
            self.loss,
            divergence_weights=weights,
            groups=groups,
            seeds=self.seeds,
            steps=len(self.source),
            rate_factors=self.rate_factors,
            precision=self.precision,
            consistency=self.consistency,
            perturbation=self.perturbation,
        )
        self.step.keys.release()
        self._program: CapturedEpoch | CompiledObjective | None = None
        freezing = any(gate.freezes_batch_norm for gate in gates(self.first).values())
        self.frozen_norms = [module for module in self.first.modules() if freezing and isinstance(module, BATCH_NORMS)]

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
        if self.epoch == 0 and self._decided:
            self._shrink()
        start_training(self.first, self.resting)
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
        before = self._set_up()
        with self._own_noise(), tensor_cores(self.device):
            inputs = self._run_captured(on_step) if self.captures else self._run_plainly(on_step)
            self._check_members(inputs)
        self._seconds = time.perf_counter() - self._began - (self._set_up() - before)
        self.epoch += 1
        losses = [float(total) / steps for total in self.step.total]
        if not self.finished and not self._decided:
            self._shrink()
        return losses

    def _set_up(self) -> float:
        """Seconds that compiling for a processor has taken, which are no part of an epoch's."""
        return self._program.seconds_to_set_up if isinstance(self._program, CompiledObjective) else 0.0

    def _run_plainly(self, on_step: Callable[[float], None]) -> Tensor:
        steps = len(self.source)
        if self._worth_compiling and isinstance(self.source, TensorBatches):
            self.step.objective = self._program = CompiledObjective(self.step.objective, self.source.batch_size)
        self._began = time.perf_counter()
        for step, (inputs, targets) in enumerate(self.source.epoch(self.seeds, self.epoch)):
            if step == int(_LOOK_AT * steps):
                self._look()
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
        program = self._program if isinstance(self._program, CapturedEpoch) else captured_epoch(self.step, self.source, plan)
        if program is None:
            self.captures = False
            return self._run_plainly(on_step)
        self._program, self._began = program, time.perf_counter()
        program.run(plan, int(_LOOK_AT * len(self.source)), self._look)
        self._next_plan = self.source.plan(self.seeds, self.epoch + 1)  # While the device is at work.
        for _ in range(len(self.source)):
            on_step(0.0)
        inputs, _ = self.source.planned(program.plan, program.offsets)
        return inputs

    def write_back(self) -> list[nn.Module]:
        """The models, whole, with what they have learned so far; once the stage is finished, in the memory format that they came in."""
        own = self.members.write_back()
        models = own if self.shrinking is None else self.shrinking.write_back()
        if self.finished:
            give_back(self._laid_out)
        return models

    def state(self) -> dict[str, Tensor]:
        """All tensors of the stage: the models' states and the optimiser's, stacked where there are several, and which units are left."""
        tensors = {MODEL + name: tensor for name, tensor in self._whole_state().items()}
        for name, kinds in self._moments().items():
            tensors |= {f"{OPTIMIZER}{kind}/{name}": tensor for kind, tensor in kinds.items()}
        if self.shrinking is not None and self._narrow is not None:
            for name in self.shrinking.kept[0]:
                tensors[KEPT + name] = torch.stack([kept[name] for kept in self.shrinking.kept])
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], epoch: int, diverged: Mapping[str, str] | None = None) -> None:
        """Take up a stage after ``epoch`` epochs, from what ``state`` gave, with these members set aside."""
        load_members(self.members, tensors)
        kept = {name.removeprefix(KEPT): units for name, units in tensors.items() if name.startswith(KEPT)}
        if kept and self.shrinking is not None:
            self.members.write_back()
            self.shrinking.take_up([{name: units[member] for name, units in kept.items()} for member in range(len(self.models))])
            self._train_narrow()
        moments: Moments = {}
        for key, tensor in tensors.items():
            if key.startswith(OPTIMIZER):
                _, kind, name = key.split("/", 2)
                moments.setdefault(name, {})[kind] = tensor.to(self.device)
        write_moments(self.step.optimizer, self.members, self._narrow, moments)
        self.epoch, self._next_plan = epoch, None
        self.diverged = {int(member): reason for member, reason in (diverged or {}).items()}

    @property
    def _decided(self) -> bool:
        """Whether the stage begins with units that no input uses, and cannot change that."""
        return all(gate.depends_on_input for gate in gates(self.first).values())

    def _units_in_use(self) -> dict[str, Tensor]:
        """Which units each member's gates keep, of shape (members, units)."""
        return dict(
            zip(gates(self.first), self.members.apply(lambda model: tuple(gate.keep() for gate in gates(model).values())), strict=True)
        )

    def _look(self) -> None:
        """Take note of the units in use: only those that are out of use now and at the end of the epoch are removed."""
        if self.shrinking is not None and not self._decided:
            self._alive = self._units_in_use()

    @torch.no_grad()
    def _shrink(self) -> None:
        """Take out what is pruned and stays so, if it pays."""
        if self.shrinking is None:
            return
        self._thinned = 0.0
        alive = {name: used | self._alive.get(name, used) for name, used in self._units_in_use().items()}
        self._alive = {}
        if all(bool(used.all()) for used in alive.values()):
            return
        self.write_back()
        candidate = self.shrinking.candidate(alive, self._pays)
        if candidate is None:
            return
        moments = self._moments()
        self.shrinking.adopt(candidate)
        self._thinned = 1.0 - _size(candidate.narrow[0].model) / _size(self.first)
        self._train_narrow()
        write_moments(self.step.optimizer, self.members, self._narrow, moments)
        self.removals.append({"epoch": self.epoch, "left": self.shrinking.widths})

    @property
    def _to_come(self) -> float:
        """Seconds that the rest of the stage takes if its epochs are like the last."""
        return (self.recipe.epochs - self.epoch) * self._seconds

    @property
    def _worth_compiling(self) -> bool:
        """Whether steps are to be compiled for a processor now: when units go slowly, and enough is to come."""
        waiting = self.compiles and self._program is None and self._thinned <= _SLOWLY
        return waiting and gains_from_compiling(self._seconds / len(self.source), len(self.models), self._to_come)

    def _pays(self, narrow: nn.Module) -> bool:
        """Whether steps become cheaper by more than it costs to make a new program, where there is one."""
        if self._program is None:
            return True
        gain = _GAIN_ON_GPU if self.captures else 1.0
        return gain * (1.0 - _size(narrow) / _size(self.first)) * self._to_come > self._program.seconds_to_set_up

    def _train_narrow(self) -> None:
        assert self._narrow is not None
        models = [narrow.model for narrow in self._narrow]
        if len(models) == 1:
            lay_out(models[0], self.source, self.precision)
        self._train_together(models)

    def _whole_state(self) -> dict[str, Tensor]:
        """The models' tensors as they would be had nothing been removed."""
        if self._narrow is None:
            own = self.members.parameters | self.members.buffers
            return {name: own.get(name, tensor) for name, tensor in self.first.state_dict().items()}
        states = [model.state_dict() for model in self.write_back()]
        return states[0] if self.members.alone else {name: torch.stack([state[name] for state in states]) for name in states[0]}

    @property
    def _narrow(self) -> list[Narrow] | None:
        """The parts of the models that are trained, unless they are whole."""
        return None if self.shrinking is None else self.shrinking.narrow

    def _moments(self) -> Moments:
        return read_moments(self.step.optimizer, self.members, self.models, self._narrow)

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
        if self.perturbation[member]:
            message += f" (inputs were also moved by {self.perturbation[member]:g}, perhaps to where the model is not defined)"
        if self.members.alone:
            raise DivergedError(message)
        self.diverged[member] = message


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _divergence_weights(models: Sequence[nn.Module], kl_scales: Sequence[KLScale] | None, n_data: int) -> Tensor:
    """The factor on the divergence of each gate of each model, per datum."""
    if not gates(models[0]):
        return torch.zeros(len(models), 0)
    scales = [1.0] * len(models) if kl_scales is None else kl_scales
    return torch.tensor([list(gate_scales(model, scale).values()) for model, scale in zip(models, scales, strict=True)]) / n_data
