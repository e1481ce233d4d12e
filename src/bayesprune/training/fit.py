"""``fit``: the stages on a user's own model and data."""

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from bayesprune.errors import BayespruneWarning, InputError, did_you_mean
from bayesprune.gates import method_class
from bayesprune.graph.calls import run_example
from bayesprune.graph.surroundings import undisturbed
from bayesprune.objective import KLScale, gate_scales
from bayesprune.storage import as_path, checksum
from bayesprune.text_table import text_table
from bayesprune.training.beforehand import check_single_samples, check_trained, check_validation, check_validation_loss
from bayesprune.training.devices import usable_device
from bayesprune.training.distributed import Ranks, launched
from bayesprune.training.evaluation import LossFunction
from bayesprune.training.labels import is_cross_entropy, label_rule
from bayesprune.training.plan import Plan, make_plan, static_method
from bayesprune.training.rank_batches import shared
from bayesprune.training.rank_store import rank_store
from bayesprune.training.recipes import Recipe, StageName, find_recipe
from bayesprune.training.sources import LoaderBatches, drawing_sampler, first_inputs
from bayesprune.training.stages import put_gates_in, run_stages
from bayesprune.training.store import NoStore, run_store
from bayesprune.training.watching import ProgressBars, Silent


@dataclass(frozen=True)
class FitResult:
    """What ``fit`` gives back. Prints as a table of its stages.

    Attributes:
        model: with its gates, after the last stage, in evaluation mode.
        stages: a dictionary for each stage: ``stage`` (``dense``, ``pruned`` or ``dependent``), ``epochs``, ``seconds``, ``kept`` (units
            for each gate, averages over samples where they depend on the input), ``error`` (percent misclassified), and what the model
            costs with the pruned units gone: ``speedup`` and ``memory`` (percent) in the paper's convention, ``macs`` and ``parameters``.
            ``removals``, where units were taken out during training, says after which ``epoch`` how many of each gate were ``left``;
            ``staying`` names the gates whose units could not be taken out then, and why.

            ``error`` is None without ``validation``, and where the task is not classification; there ``validation_loss`` is what validation
            says, None if that is no finite number. The four of the cost are None but for the paper's networks, which state their layers;
            ``summary``, ``compact`` and ``cost`` tell it for others, whose ``dense`` stage keeps ``[]``.
        history: a dictionary for each epoch: ``stage``, ``epoch``, ``loss`` and ``seconds``, and as above ``error``, ``validation_loss``,
            ``kept``, ``speedup`` and ``memory``. ``loss`` has the divergence of the units that are there: it drops, or with some methods
            rises, when units are taken out.
    """

    model: nn.Module
    stages: list[dict[str, Any]]
    history: list[dict[str, Any]]

    def __str__(self) -> str:
        rows = [("stage", "epochs", "seconds", "error %", "validation loss", "units kept", "xFLOPs")]
        for stage in self.stages:
            kept = f"{sum(stage['kept']):,.0f}" if stage["kept"] else "all"
            error, speedup = ("" if stage[name] is None else f"{stage[name]:.2f}" for name in ("error", "speedup"))
            loss = "" if stage.get("validation_loss") is None else f"{stage['validation_loss']:.4g}"
            rows.append((stage["stage"], str(stage["epochs"]), f"{stage['seconds']:.1f}", error, loss, kept, speedup))
        filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
        return text_table(list(zip(*filled, strict=True)), "<>>>>>>")


@undisturbed()
@torch.enable_grad()
def fit(
    model: nn.Module,
    loader: "DataLoader[Any]",
    *,
    method: str = "dbb",
    validation: "DataLoader[Any] | None" = None,
    loss: LossFunction = F.cross_entropy,
    recipe: str | Recipe = "fast",
    epochs: int | Mapping[StageName, int] | None = None,
    tradeoff: float | None = None,
    kl_scale: KLScale | None = None,
    pretrain: bool = True,
    n_data: int | None = None,
    example_inputs: Tensor | None = None,
    before_norm: bool = False,
    shrink: bool | None = None,
    precision: str = "float32",
    device: torch.device | str | None = None,
    seed: int = 0,
    checkpoints: Path | str | None = None,
    progress: bool = True,
    **hyperparameters: Any,
) -> FitResult:
    """Pretrain, prune and, for ``dbb``, make dependent a model on a user's own data.

    In a script that ``torchrun`` started, or that has made a process group of its own, all processes train one model and all of them must
    call this with the same arguments. Each reads the loader's batches as one process would, and takes its part of each: leave
    ``DistributedSampler`` out. The result is that of one process up to rounding, in all of them.

    Args:
        model: what ``sparsify`` can handle; it is not changed. Parts of it that are frozen and in evaluation mode, such as norms of a
            pretrained model, stay in evaluation mode.
        loader: gives pairs (inputs, targets).
        method: ``bb``, ``dbb``, ``sbp``, ``vib``, ``l0``, ``gd`` or ``cd``.
        validation: to evaluate on after every epoch.
        loss: mean loss of a batch, from outputs and targets.
        recipe: ``fast``, ``paper``, ``consistent``, ``smooth``, ``brief``, ``deep`` or a ``bayesprune.training.Recipe`` of one's own.
        epochs: of every stage, or by stage, instead of the recipe's.
        tradeoff: of the method, in its own terms; see the method's gate.
        kl_scale: factors on the divergence, instead of the trade-off's.
        pretrain: train the model without gates first; False if it is trained already.
        n_data: the size of the training set, where the loader does not know it.
        example_inputs: what the model's computation is followed with; by default the first inputs of the loader.
        before_norm: gate convolutions before their norms.
        shrink: take units that are pruned, and stay so, out of the model while it is trained, so that steps get cheaper; by default what
            the recipe says. The model that comes back has its old shapes: ``compact`` takes its pruned units out for good.
        precision: the type to compute layers in: ``float32``, or ``bfloat16``, about twice as fast on a GPU and on a processor that has
            instructions for it. Weights and gates keep their type.
        device: to train on; by default where the model is.
        seed: of everything random.
        checkpoints: a folder to keep every epoch in; a call with the same folder goes on where the last one stopped, or gives its result
            back. It is refused if the plan, the model's shapes or the number of samples differ, or if another process is at work
            in it; that the data are the same is up to you.
        progress: show bars.
        **hyperparameters: of the method's gate.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"fit takes an nn.Module, not {type(model).__name__}")
    _check_loss(loss)
    if next(model.parameters(), None) is None:
        raise InputError(f"{type(model).__name__} has no parameters: there is nothing to train")
    if not isinstance(recipe, (str, Recipe)):
        raise InputError(f"recipe is the name of one, such as 'fast', or a bayesprune.training.Recipe, not {recipe!r}")
    if example_inputs is not None and not isinstance(example_inputs, Tensor):
        raise InputError(f"example_inputs is a tensor like the loader's inputs, not {type(example_inputs).__name__}")
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    _check_names(method, hyperparameters)
    if epochs is not None:
        chosen = chosen.with_epochs(epochs)
    if shrink is not None:
        chosen = dataclasses.replace(chosen, shrink=shrink)
    with launched() as ranks:
        target = ranks.device(usable_device(device) if device is not None else next(model.parameters()).device)
        training = LoaderBatches(loader, target, n_data)
        test = LoaderBatches(validation, target, name="validation loader") if validation is not None else None
        _check_samplers(ranks, training, test)
        plan = make_plan(
            method,
            chosen,
            training.n_data,
            tradeoff=tradeoff,
            kl_scale=kl_scale,
            hyperparameters=hyperparameters,
            seed=seed,
            before_norm=before_norm,
            precision=precision,
            pretrain=pretrain,
        )
        check_trained(model, plan)
        own = copy.deepcopy(model).to(target)
        ranks.take_over(own)
        inputs = first_inputs(training)
        example = None if example_inputs is None else example_inputs.to(target)
        _check(own, plan, inputs if example is None else example)
        check_single_samples(own, plan, inputs, training)
        if test is not None:
            check_validation(own, test)
        _check_labels(own, loss, inputs, training, test)
        if test is not None:
            check_validation_loss(own, test, loss)
        description = _describe(plan, own, training)
        ranks.require_same("models, data or options", description)
        shown = ProgressBars() if progress and ranks.is_first else nullcontext(Silent())
        kept = nullcontext(NoStore()) if checkpoints is None else rank_store(ranks, lambda: run_store(as_path(checkpoints), description))
        with kept as store, shown as watcher:
            tested = None if test is None else shared(test, ranks)
            (outcome,) = run_stages([own], [plan], shared(training, ranks), tested, loss, store, watcher, example)
    return FitResult(outcome.model.eval(), outcome.results, outcome.rows)


def _check_loss(loss: Any) -> None:
    if not callable(loss):
        raise InputError(f"loss is a function of outputs and targets, not {loss!r}")
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        warnings.warn(
            f"{type(loss).__name__} has parameters of its own, which are not trained: make them part of the model, or freeze them with "
            "requires_grad_(False)",
            BayespruneWarning,
            stacklevel=4,
        )


def _check_names(method: str, hyperparameters: Mapping[str, Any]) -> None:
    """What is no hyper-parameter of the method's may be a misspelt option of ``fit``; ``sparsify`` refuses the rest."""
    known = inspect.signature(method_class(static_method(method)).__init__).parameters
    for name in hyperparameters.keys() - known.keys():
        hint = did_you_mean(name, inspect.signature(fit).parameters)
        if hint and not did_you_mean(name, known):
            raise InputError(f"fit has no option '{name}'.{hint}")


def _check_samplers(ranks: Ranks, *sources: LoaderBatches | None) -> None:
    for source in sources:
        if not ranks.alone and source is not None and isinstance(drawing_sampler(source.loader), DistributedSampler):
            raise InputError("fit splits batches over processes itself: leave DistributedSampler out, with the batch size of all together")


def _check_labels(model: nn.Module, loss: LossFunction, inputs: Tensor, *sources: LoaderBatches | None) -> None:
    if not is_cross_entropy(loss):
        return
    with torch.random.fork_rng(devices=[]):
        rule = label_rule(loss, run_example(model, inputs))
    for source in sources:
        if rule is not None and source is not None:
            source.expect(rule)


def _check(model: nn.Module, plan: Plan, example_inputs: Tensor) -> None:
    """Whatever is wrong with the model or the hyper-parameters should show before the first epoch, not after the last of pretraining."""
    with torch.random.fork_rng(devices=[]):
        gated = put_gates_in(model, plan, example_inputs)
    gate_scales(gated, plan.kl_scale)


def _describe(plan: Plan, model: nn.Module, training: LoaderBatches) -> dict[str, Any]:
    """What must be the same for a folder of checkpoints to be taken up; the weights too, where they are what is pruned."""
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    weights = None if "dense" in plan.stages else checksum(model.state_dict(), {})
    data = {"samples": training.n_data, "batches": len(training)}
    # The strength follows from the scale, the share is that of all the data, and compiling changes rounding alone.
    asked = {name: value for name, value in dataclasses.asdict(plan).items() if name not in ("strength", "share", "compiled")}
    return {"plan": asked, "model": type(model).__name__, "parameters": shapes, "weights": weights, "data": data}
