"""Pretrain, prune, make dependent: the stages of a run, on any model and data."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.errors import DivergedError
from bayesprune.gates import gates
from bayesprune.noise import derive_seed
from bayesprune.objective import gate_scales
from bayesprune.training.evaluation import LossFunction, evaluate, measure_size
from bayesprune.training.plan import Plan, static_method
from bayesprune.training.recipes import StageName
from bayesprune.training.sources import BatchSource, first_inputs
from bayesprune.training.store import RunStore, StageRecord
from bayesprune.training.trainer import StageTrainer, load_model
from bayesprune.training.watching import Watcher


@dataclass(frozen=True)
class StagedRun:
    """The outcome: the model after the last stage, a row for each stage, and one for each epoch."""

    model: nn.Module
    results: list[dict[str, Any]]
    rows: list[dict[str, Any]]


def run_stages(
    model: nn.Module, plan: Plan, training: BatchSource, test: BatchSource | None, loss: LossFunction, store: RunStore, watcher: Watcher
) -> StagedRun:
    """Run the stages of a plan one after another, taking up what the store has of them.

    Args:
        model: on its device, freshly initialised or pretrained; changed by the ``dense`` stage.
        plan: what to do.
        training: batches to train on.
        test: batches to evaluate on after every epoch.
        loss: mean loss of a batch, from outputs and targets.
        store: keeps every finished epoch.
        watcher: is told of progress.

    Raises:
        DivergedError: a loss became NaN or infinite.
    """
    rows: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for stage in plan.stages:
        model = _prepare(model, stage, plan, training)
        record, trainer = _take_up(model, stage, plan, training, loss, store, rows)
        rows = record.rows
        if record.result is None:
            assert trainer is not None
            store.take_up(rows)
            watcher.stage_started(stage, trainer.recipe.epochs, len(training), trainer.epoch)
            _train(trainer, record, test, store, watcher)
        assert record.result is not None
        results.append(record.result)
        watcher.stage_finished(record.result)
    store.finish(rows)
    return StagedRun(model, results, rows)


def put_gates_in(model: nn.Module, plan: Plan, example_inputs: Tensor) -> nn.Module:
    """The model with the gates of the pruning stage."""
    method = static_method(plan.method)
    return sparsify(model, method, example_inputs=example_inputs, before_norm=plan.before_norm, **plan.hyperparameters)


def _prepare(model: nn.Module, stage: StageName, plan: Plan, training: BatchSource) -> nn.Module:
    """The model as a stage finds it at its beginning."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(plan.seed, stage, "gates"))
        if stage == "pruned":
            return put_gates_in(model, plan, first_inputs(training))
        return make_dependent(model) if stage == "dependent" else model


def _take_up(
    model: nn.Module,
    stage: StageName,
    plan: Plan,
    training: BatchSource,
    loss: LossFunction,
    store: RunStore,
    rows: list[dict[str, Any]],
) -> tuple[StageRecord, StageTrainer | None]:
    """What is known of a stage, and a trainer to go on with it unless it is finished."""
    found = store.load(stage)
    if found is not None and found[1].result is not None:
        load_model(model, found[0])
        return found[1], None
    kl_scale = gate_scales(model, plan.kl_scale) if stage == "pruned" else 1.0
    trainer = StageTrainer(model, training, plan.recipe.stages[stage], loss, kl_scale=kl_scale, seed=derive_seed(plan.seed, stage))
    if found is None:
        return StageRecord(stage, rows=list(rows)), trainer
    trainer.load_state(found[0], found[1].epoch)
    return found[1], trainer


def _train(trainer: StageTrainer, record: StageRecord, test: BatchSource | None, store: RunStore, watcher: Watcher) -> None:
    """Train a stage to its end, storing every epoch."""
    while not trainer.finished:
        started = time.perf_counter()
        try:
            mean_loss = trainer.train_epoch(watcher.step)
        except DivergedError as error:
            raise DivergedError(
                f"stage '{record.stage}' stopped: {error}; {store.describe()}. Try a smaller KL scale or another seed"
            ) from error
        error_percent, used = None, [float(gate.keep().sum()) for gate in gates(trainer.model).values()]
        if test is not None:
            evaluation = evaluate(trainer.model, test, trainer.loss)
            error_percent, used = evaluation.error, evaluation.used
        size = measure_size(trainer.model, used)
        record.epoch = trainer.epoch
        record.seconds += time.perf_counter() - started
        measured = {"error": error_percent, "kept": size.kept, "speedup": size.speedup, "memory": size.memory}
        row = {"stage": record.stage, "epoch": record.epoch, "loss": mean_loss, **measured, "seconds": round(record.seconds, 3)}
        record.rows.append(row)
        store.append(row)
        if trainer.finished:
            record.result = {
                "stage": record.stage,
                **measured,
                "seconds": round(record.seconds, 3),
                "macs": size.macs,
                "parameters": size.parameters,
                "epochs": record.epoch,
            }
        store.save(trainer.state(), record)
        watcher.epoch_finished(row)
