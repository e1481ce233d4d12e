"""Pretrain, prune, make dependent: the stages of a run, on any model and data, for one model or many side by side."""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.attach.sparsify import switch_off_fixed_dropout
from bayesprune.errors import DivergedError, InputError
from bayesprune.noise import derive_seed
from bayesprune.prediction import evaluating
from bayesprune.training.evaluation import LossFunction, measure_members
from bayesprune.training.loading import load_members
from bayesprune.training.members import Members
from bayesprune.training.modes import parts_at_rest
from bayesprune.training.plan import PRECISIONS, Plan, static_method
from bayesprune.training.rank_batches import RankBatches
from bayesprune.training.recipes import StageName
from bayesprune.training.sources import BatchSource, first_batch, first_inputs
from bayesprune.training.step import check_classes, check_movable, gradient_of
from bayesprune.training.store import RunStore, StageRecord
from bayesprune.training.trainer import StageTrainer
from bayesprune.training.watching import Watcher

_LOOKS = 10
"""Models that are trained side by side are evaluated after every tenth of a stage, and more often at its beginning."""
DIVERGED, FINISHED = "diverged", "finished"
"""What a row says has become of a model."""


@dataclass
class StagedRun:
    """The outcome for one model: as it is after its last stage, a row for each stage, and one for each epoch unless it was one of many."""

    model: nn.Module
    results: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        return bool(self.results) and self.results[-1].get("status") == DIVERGED


def run_stages(
    models: Sequence[nn.Module],
    plans: Sequence[Plan],
    training: BatchSource,
    test: BatchSource | None,
    loss: LossFunction,
    store: RunStore,
    watcher: Watcher,
    example_inputs: Tensor | None = None,
) -> list[StagedRun]:
    """Run the stages of a plan one after another, taking up what the store has of them.

    Several models are trained side by side. One of them that diverges gets a row that says so, and is no part of later stages.

    Args:
        models: on their device, freshly initialised or pretrained; changed by the ``dense`` stage.
        plans: what to do to each of them: the same stages and recipe.
        training: batches to train on.
        test: batches to evaluate on, after every epoch or now and then; see ``Plan.rarely_evaluated``.
        loss: mean loss of a batch, from outputs and targets.
        store: keeps finished epochs; see ``RunStore.is_due``.
        watcher: is told of progress.
        example_inputs: with which the models are followed to put gates in; by default the first inputs to train on.

    Raises:
        DivergedError: the loss of the only model became NaN or infinite.
    """
    _check_plans(plans)
    resting = parts_at_rest(models[0])
    recipes = [plans[0].recipe.stages[stage] for stage in plans[0].stages]
    if any(recipe.shows_twice for recipe in recipes):
        _check_pairs(models[0], training, loss, moved=any(recipe.perturbation for recipe in recipes))
    runs = [StagedRun(model) for model in models]
    rows: list[dict[str, Any]] = []
    for stage in plans[0].stages:
        going = [(run, plan) for run, plan in zip(runs, plans, strict=True) if not run.diverged]
        if not going:
            break
        for run, plan in going:
            run.model = _prepare(run.model, stage, plan, training, example_inputs)
        record, trainer = _take_up(
            [run.model for run, _ in going], stage, [plan for _, plan in going], training, loss, store, rows, resting
        )
        rows = record.rows
        if record.results is None:
            assert trainer is not None
            store.take_up(rows)
            watcher.stage_started(stage, trainer.recipe.epochs, len(training), trainer.epoch)
            _train(trainer, record, test, store, watcher, rarely=plans[0].rarely_evaluated)
        assert record.results is not None
        for (run, _), result in zip(going, record.results, strict=True):
            run.results.append(result)
        watcher.stage_finished(_in_short(record.results))
    store.finish(rows)
    if len(runs) == 1:
        runs[0].rows = rows
    return runs


def put_gates_in(model: nn.Module, plan: Plan, example_inputs: Tensor) -> nn.Module:
    """The model with the gates of the pruning stage."""
    method = static_method(plan.method)
    return sparsify(model, method, example_inputs=example_inputs, before_norm=plan.before_norm, **plan.hyperparameters)


def _check_plans(plans: Sequence[Plan]) -> None:
    first = plans[0]
    for plan in plans:
        same = dataclasses.replace(
            plan, seed=first.seed, kl_scale=first.kl_scale, hyperparameters=first.hyperparameters, strength=first.strength
        )
        if same != first:
            raise InputError("models that are trained side by side have the same method, stages, recipe and precision")


def _check_pairs(model: nn.Module, training: BatchSource, loss: LossFunction, moved: bool) -> None:
    """Whether these batches can be shown twice and compared, and moved if need be, before the first stage rather than after it."""
    if isinstance(training, RankBatches):
        raise InputError("a recipe that shows batches twice is for one process: start without torchrun, or choose another recipe")
    inputs, targets = first_batch(training)
    check_classes(targets)
    if not moved:
        return
    check_movable(inputs)
    with evaluating(model), torch.random.fork_rng(devices=[]), torch.backends.cudnn.flags(enabled=False):  # Whose RNNs want training mode.
        here = inputs.detach().requires_grad_()
        gradient_of(loss(model(here.clone()), targets), here)


def _prepare(model: nn.Module, stage: StageName, plan: Plan, training: BatchSource, example_inputs: Tensor | None) -> nn.Module:
    """The model as a stage finds it at its beginning."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(plan.seed, stage, "gates"))
        if stage == "pruned":
            return put_gates_in(model, plan, first_inputs(training) if example_inputs is None else example_inputs)
        if stage == "dependent":
            return make_dependent(model)
        if plan.recipe.stages[stage].without_dropout:
            switch_off_fixed_dropout(model)
        return model


def _take_up(
    models: Sequence[nn.Module],
    stage: StageName,
    plans: Sequence[Plan],
    training: BatchSource,
    loss: LossFunction,
    store: RunStore,
    rows: list[dict[str, Any]],
    resting: frozenset[str],
) -> tuple[StageRecord, StageTrainer | None]:
    """What is known of a stage, and a trainer to go on with it unless it is finished."""
    found = store.load(stage)
    if found is not None and found[1].results is not None:
        load_members(Members(models), found[0])
        return found[1], None
    seeds = [derive_seed(plan.seed, stage) for plan in plans]
    recipe, precision = plans[0].recipe, PRECISIONS[plans[0].precision]
    trainer = StageTrainer(
        models,
        training,
        recipe.stages[stage],
        loss,
        kl_scales=[plan.scale(stage) for plan in plans],
        seeds=seeds,
        consistency=[plan.consistency(stage) for plan in plans],
        precision=precision,
        compiled=plans[0].compiled,
        shrink=recipe.shrink,
        resting=resting,
    )
    if found is None:
        return StageRecord(stage, rows=list(rows)), trainer
    trainer.load_state(found[0], found[1].epoch, found[1].diverged)
    trainer.removals = found[1].removals
    if trainer.shrinking is not None:
        trainer.shrinking.staying |= found[1].staying
    return found[1], trainer


def _train(
    trainer: StageTrainer, record: StageRecord, test: BatchSource | None, store: RunStore, watcher: Watcher, *, rarely: bool
) -> None:
    """Train a stage to its end, evaluating every epoch or now and then, and storing every epoch or those that the store has time for."""
    alone = trainer.members.alone
    stored, cost = time.perf_counter(), 0.0
    while not trainer.finished and record.results is None:
        started = time.perf_counter()
        try:
            losses = trainer.train_epoch(watcher.step)
        except DivergedError as error:
            raise DivergedError(
                f"stage '{record.stage}' stopped: {error}; {store.describe()}. If all inputs and targets are finite, try a smaller KL "
                "scale or another seed"
            ) from error
        last = trainer.finished or len(trainer.diverged) == len(trainer.members)
        look = (alone and not rarely) or last or is_look(trainer.epoch, trainer.recipe.epochs)
        measured = measure_members(trainer.members, test, trainer.loss, trainer.models[0]) if look else []
        for member in trainer.diverged if look else ():
            measured[member]["status"] = DIVERGED
        record.epoch, record.diverged = trainer.epoch, {str(member): reason for member, reason in trainer.diverged.items()}
        record.removals = trainer.removals
        if trainer.shrinking is not None:
            record.staying = trainer.shrinking.staying
        record.seconds += time.perf_counter() - started
        seconds = round(record.seconds, 3)
        if look:
            row = {
                "stage": record.stage,
                "epoch": record.epoch,
                "loss": _median([loss for member, loss in enumerate(losses) if member not in trainer.diverged] or losses),
                **_epoch_part(measured),
                "seconds": seconds,
            }
            if alone:
                record.rows.append(row)
                store.append(row)
            else:
                moment = {"epoch": record.epoch, "seconds": seconds}
                record.histories.append([moment | {name: each[name] for name in ("error", "kept")} for each in measured])
        if last:
            trainer.write_back()
            record.results = [_result(trainer, member, {**each, "seconds": seconds}, record) for member, each in enumerate(measured)]
        began = time.perf_counter()
        if last or store.is_due(alone, began - stored, cost):
            store.save(trainer.state(), record)
            stored = time.perf_counter()
            cost = stored - began
        if look:
            watcher.epoch_finished(row)


def is_look(epoch: int, epochs: int) -> bool:
    """Whether models that are not evaluated after every epoch are after this one: most units go at the beginning of a stage."""
    early = epoch < epochs / _LOOKS and math.floor(2 * math.log2(epoch)) > math.floor(2 * math.log2(max(epoch - 1, 0.5)))
    return early or epoch % max(1, epochs // _LOOKS) == 0


def _epoch_part(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What an epoch's row says of the models."""
    short = _in_short(measured)
    return {name: short[name] for name in ("error", "kept", "speedup", "memory", "validation_loss") if name in short}


def _result(trainer: StageTrainer, member: int, measured: dict[str, Any], record: StageRecord) -> dict[str, Any]:
    """A member's row in the summary."""
    if member in trainer.diverged:
        return {"stage": record.stage, "status": DIVERGED, "reason": trainer.diverged[member], "error": None, "epochs": record.epoch}
    names = ("error", "validation_loss", "kept", "speedup", "memory", "seconds", "macs", "parameters")
    history = [look[member] for look in record.histories]
    more = {"removals": record.removals, "staying": record.staying, "history": history}
    result = {"stage": record.stage, **{name: measured[name] for name in names if name in measured}, "epochs": record.epoch}
    return result | {name: value for name, value in more.items() if value}


def _in_short(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several models in one row: medians."""
    sound = [each for each in measured if each.get("status") != DIVERGED]
    if len(measured) == 1 or not sound:
        return measured[0]
    kept = [statistics.median(units) for units in zip(*(each["kept"] for each in sound), strict=True)]
    names: tuple[str, ...] = ("error", "speedup", "memory", "validation_loss")
    numbers = {name: _median([each[name] for each in sound]) for name in names if name in sound[0]}
    return {**sound[0], **numbers, "kept": kept}


def _median(values: Sequence[Any]) -> Any:
    return None if not values or any(value is None for value in values) else statistics.median(values)
