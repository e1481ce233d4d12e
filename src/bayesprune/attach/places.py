"""Where the gates of a model can go."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesprune.attach.discovery import discover
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs
from bayesprune.models.description import DescribedModel, GatePlace, LeftAlone


def find_places(
    model: nn.Module,
    example_inputs: ExampleInputs | None = None,
    before_norm: bool = False,
    chosen: Callable[[str], bool] = lambda _: True,
) -> tuple[list[GatePlace], list[LeftAlone]]:
    """The gate places of a model in network order, and the layers that are left alone.

    A model that states its places is taken at its word; in any other they are found by walking the graph of its computation.
    """
    if not isinstance(model, DescribedModel):
        if example_inputs is None:
            raise InputError(f"{type(model).__name__} does not state where gates go: give example_inputs, such as two inputs of the data")
        return discover(model, example_inputs, before_norm, chosen)
    places = list(model.gate_places(before_norm))
    excluded = [LeftAlone(place.controls, "excluded when the gates were put in") for place in places if not chosen(place.controls)]
    return [place for place in places if chosen(place.controls)], excluded


def stated_example(model: nn.Module) -> Tensor:
    """Two inputs of the shape that the model states.

    Raises:
        InputError: it states none.
    """
    if not isinstance(model, DescribedModel):
        raise InputError(f"{type(model).__name__} does not state its input shape: give example_inputs, such as two inputs of the data")
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, *model.input_shape, generator=generator).to(like.device, like.dtype)
