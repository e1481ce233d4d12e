"""Where the gates of a model can go, and with which example it is followed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesprune.attach.discovery import discover
from bayesprune.attach.reasons import NOT_CHOSEN
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates import require_gates, unwrapped
from bayesprune.graph.calls import refuse_meta
from bayesprune.models.description import DescribedModel, GatePlace, LeftAlone


def find_places(
    model: nn.Module,
    example_inputs: ExampleInputs | None = None,
    before_norm: bool = False,
    signed: bool = False,
    chosen: Callable[[str], bool] = lambda _: True,
) -> tuple[list[GatePlace], list[LeftAlone]]:
    """The gate places of a model in network order, and the layers that are left alone.

    A model that states its places is taken at its word; in any other they are found by walking the graph of its computation.
    """
    if not isinstance(model, DescribedModel):
        return discover(model, stated_example(model) if example_inputs is None else example_inputs, before_norm, signed, chosen)
    places = list(model.gate_places(before_norm))
    excluded = [LeftAlone(place.controls, NOT_CHOSEN) for place in places if not chosen(place.controls)]
    return [place for place in places if chosen(place.controls)], excluded


def model_and_example(function: str, gated: nn.Module, example_inputs: ExampleInputs | None) -> tuple[nn.Module, ExampleInputs]:
    """The model with gates that a function was given, unwrapped, and an example for it.

    Raises:
        InputError: it is no model, has no gates or no numbers, or says nothing about its inputs.
    """
    if not isinstance(gated, nn.Module):
        raise InputError(f"{function} takes an nn.Module, not {type(gated).__name__}")
    model = unwrapped(gated)
    require_gates(model)
    inputs = example_inputs if example_inputs is not None else stated_example(model)
    refuse_meta(model, inputs)
    return model, inputs


def stated_example(model: nn.Module) -> Tensor:
    """Two inputs of the shape that a model states, or that its first layer tells if it is a linear one.

    Raises:
        InputError: the model says nothing about its inputs.
    """
    like = next(model.parameters(), torch.empty(0))
    first = next((layer for layer in model.modules() if layer._parameters), None)
    if isinstance(model, DescribedModel):
        shape = model.input_shape
    elif isinstance(model, nn.Sequential) and isinstance(first, nn.Linear):
        shape = (first.in_features,)
    else:
        raise InputError(f"{type(model).__name__} does not say what its inputs look like: give example_inputs, such as two of the data")
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
