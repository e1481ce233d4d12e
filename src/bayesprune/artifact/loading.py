"""``load``: a model out of a file."""

import os
from typing import Any

from torch import Tensor, nn

from bayesprune.artifact.building import build, fill_in
from bayesprune.artifact.checks import shown
from bayesprune.artifact.description import from_json
from bayesprune.artifact.file import damaged, read
from bayesprune.artifact.gated import gates_into
from bayesprune.artifact.network import FAILURES, LoadedNetwork
from bayesprune.artifact.rehearsal import rehearse
from bayesprune.artifact.tables import check_stored
from bayesprune.artifact.values import MalformedError
from bayesprune.errors import InputError, first_line
from bayesprune.graph.surroundings import undisturbed

MAX_ELEMENTS = 2**28


@undisturbed()
def load(path: str | os.PathLike[str], *, into: nn.Module | None = None, max_elements: int = MAX_ELEMENTS) -> nn.Module:
    """Give back a model that ``save`` wrote. Nothing from the file is executed, and everything in it is checked first.

    A network comes back as a ``LoadedNetwork`` on the processor, in evaluation mode: call ``train()`` to go on training, ``to(device)`` to
    move it. Before its tensors are put in place it is gone through once, without memory, on the input shapes that it was saved with.

    A model with gates needs ``into``, the model that it was made from, with or without gates: the result is a copy of it with the saved
    gates and tensors.

    Args:
        path: of the file.
        into: the model for a file with gates.
        max_elements: the largest tensor that the network may compute for inputs of the shapes that it was saved with; all that it holds
            at one time may take four times as much. It protects against files made to fill the memory; raise it for a large network
            that you trust.

    Raises:
        StorageError: the file cannot be read, is damaged, is not one that ``save`` wrote, or is from a newer version.
        InputError: ``into`` is missing, or is another model than the one that was saved.
    """
    tensors, description = read(path)
    kind = description.get("kind")
    try:
        if kind == "network":
            if into is not None:
                raise InputError(f"{path} holds a whole network, without gates: load it without 'into'")
            return _network(description, tensors, max_elements)
        if kind == "gated":
            if into is None:
                name = shown(description.get("model"))
                raise InputError(f"{path} holds the gates and tensors of a {name}: give the model as well, load(path, into=model)")
            return gates_into(into, description, tensors)
    except (MalformedError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    raise damaged(path, f"it holds {shown(kind)}, which is neither a network nor a model with gates")


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says about its model, as plain JSON: its layers, steps and tensors or its gates, its certificate and its cost.

    It is what the file says, its checksum compared and no more.
    """
    return read(path)[1]


def _network(description: dict[str, Any], tensors: dict[str, Tensor], max_elements: int) -> LoadedNetwork:
    try:
        blueprint = from_json(description)
        check_stored(blueprint.tensors, tensors)
        network = build(blueprint, _statement(description, "certificate"), _statement(description, "cost"))
        rehearse(network, max_elements)
        fill_in(network, tensors)
    except MalformedError:
        raise
    except FAILURES as error:  # What no check has foreseen is damage all the same.
        raise MalformedError(first_line(error)) from error
    return network


def _statement(description: dict[str, Any], name: str) -> dict[str, Any] | None:
    statement = description.get(name)
    if statement is not None and not isinstance(statement, dict):
        raise MalformedError(f"its {name} is no mapping")
    return statement
