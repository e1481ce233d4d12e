"""What would stop a training after its first epoch, or its last, found before its first step."""

import copy

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError, first_line
from bayesprune.gates import method_class
from bayesprune.graph.calls import run_example
from bayesprune.training.evaluation import LossFunction, mean_loss
from bayesprune.training.modes import parts_at_rest, start_training
from bayesprune.training.plan import Plan, static_method
from bayesprune.training.sources import LoaderBatches, first_batch, first_inputs


def check_trained(model: nn.Module, plan: Plan) -> None:
    """Refuse to pretrain a model of which nothing is trained; its gates could be."""
    if "dense" in plan.stages and not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"all parameters of {type(model).__name__} are frozen, so that it cannot be pretrained: give pretrain=False to train its "
            "gates alone, or let some of its parameters require gradients"
        )


def check_single_samples(model: nn.Module, plan: Plan, inputs: Tensor, training: LoaderBatches) -> None:
    """Refuse batches of a single sample, as the last of an epoch may be, where the model cannot be trained on them: batch norms cannot."""
    norms_rest = "dense" not in plan.stages and method_class(static_method(plan.method)).freezes_batch_norm
    if training.smallest_batch != 1 or norms_rest:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trained = copy.deepcopy(model)
            start_training(trained, parts_at_rest(model))
            trained(inputs[:1])
    except ValueError as error:
        raise InputError(
            f"a batch of the loader has a single sample, which {type(model).__name__} cannot be trained on: {first_line(error)}. Give the "
            "loader another batch_size, or drop_last=True"
        ) from error


def check_validation(model: nn.Module, validation: LoaderBatches) -> None:
    """Refuse data for evaluation that the model does not run on."""
    try:
        with torch.random.fork_rng(devices=[]):
            run_example(model, first_inputs(validation))
    except InputError as error:
        raise InputError(f"the inputs of the validation loader do not fit the model: {error}") from error


def check_validation_loss(model: nn.Module, validation: LoaderBatches, loss: LossFunction) -> None:
    """Refuse targets for evaluation that the loss does not take."""
    inputs, targets = first_batch(validation)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mean_loss(loss, run_example(model, inputs), targets)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise InputError(
            f"the loss does not take the targets of the validation loader, of shape {tuple(targets.shape)}: {first_line(error)}"
        ) from error
