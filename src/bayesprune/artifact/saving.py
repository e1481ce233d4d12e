"""``save``: a model into one file."""

import os
import warnings
from typing import Any

from torch import Tensor, fx, nn

from bayesprune.artifact.blueprint import Blueprint
from bayesprune.artifact.building import build
from bayesprune.artifact.describing import blueprint_of, examples_of, program_of
from bayesprune.artifact.description import from_json, to_json
from bayesprune.artifact.file import write
from bayesprune.artifact.gated import describe_gated
from bayesprune.artifact.network import LoadedNetwork
from bayesprune.artifact.rehearsal import rehearse
from bayesprune.artifact.statements import plain_statement
from bayesprune.artifact.values import LARGEST_ELEMENTS, MalformedError
from bayesprune.attach.places import stated_example
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates import gates, unwrapped
from bayesprune.graph import trace
from bayesprune.graph.calls import not_updated
from bayesprune.graph.surroundings import in_turn
from bayesprune.prediction import evaluating
from bayesprune.version import __version__


@in_turn()
def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: ExampleInputs | None = None,
    certificate: Any = None,
    cost: Any = None,
) -> None:
    """Write a model into one safetensors file, from which ``load`` gives it back without its class and without running code.

    A model without gates is written as a description of what it computes, in a closed list of layers and functions, and its tensors. What
    ``compact`` and ``load`` return is described as it is; any other model is traced, for which it needs ``example_inputs``. A model with
    gates is written as its tensors and its gates, and loaded into the model that it was made from: ``load(path, into=model)``.

    Tied parameters stay tied, and frozen ones frozen. Weight norm and other parametrisations are written as the weights they give; results
    that are named tuples come back as tuples. What is
    loaded computes the same, bit for bit; but tensors are written in their usual order of elements, so that a model in the memory format
    ``channels_last`` may round otherwise until the loaded one is put into that format again, with ``to(memory_format=...)``.

    Args:
        model: what to save.
        path: of the file; one that is there is replaced when the new one is complete.
        example_inputs: a tensor, a tuple of positional arguments, or a mapping of keyword arguments that the model runs on, with a batch of
            at least two; may be left out for models that state their input shape.
        certificate: what is known about the model's exactness: a mapping or dataclass of plain values.
        cost: of the model, likewise.

    Raises:
        InputError: the model computes something outside of the closed list; the message names it.
        StorageError: the file cannot be written.

    Example:
        >>> save(result.model, "small.safetensors")
        >>> network = load("small.safetensors")
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"save takes an nn.Module, not {type(model).__name__}: save(model, path)")
    model = unwrapped(model)
    description: dict[str, Any] = {
        "written_by": f"bayesprune {__version__}",
        "certificate": plain_statement(certificate, "certificate"),
        "cost": plain_statement(cost, "cost"),
    }
    if gates(model):
        gated, stored = describe_gated(model)
        description |= {"kind": "gated"} | gated
    else:
        with evaluating(model):
            blueprint, stored = _describe(model, example_inputs)
            description |= {"kind": "network"} | _proofread(blueprint)
    write(path, stored, description)


def _describe(model: nn.Module, example_inputs: ExampleInputs | None) -> tuple[Blueprint, dict[str, Tensor]]:
    if isinstance(model, LoadedNetwork):
        return blueprint_of(model, model.blueprint.program, model.blueprint.examples)
    if isinstance(model, fx.GraphModule):
        try:
            return blueprint_of(model, program_of(model), examples_of(model, example_inputs))
        except InputError:
            if example_inputs is None:
                raise
    example_inputs = stated_example(model) if example_inputs is None else example_inputs
    traced = trace(model, example_inputs)
    if traced.meta.get("only_size"):
        warnings.warn(
            "what is saved is for inputs of the example's size (the batch apart): the model's code could be followed for no other",
            BayespruneWarning,
            stacklevel=4,
        )
    if traced.meta["written"]:
        warnings.warn(not_updated(model, traced.meta["written"], "what is saved"), BayespruneWarning, stacklevel=4)
    return blueprint_of(traced, program_of(traced), examples_of(traced, example_inputs))


def _proofread(blueprint: Blueprint) -> dict[str, Any]:
    """The description, after what ``load`` will check has been checked."""
    try:
        description = to_json(blueprint)
        rehearse(build(from_json(description), None, None), LARGEST_ELEMENTS)
    except MalformedError as error:
        raise InputError(f"the model cannot be saved: {error}") from error
    return description
