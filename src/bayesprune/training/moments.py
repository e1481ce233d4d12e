"""The optimiser's tensors of models, whole, whatever was taken out of the models meanwhile."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesprune.narrowing.copies import Narrow
from bayesprune.training.members import Members

Moments = dict[str, dict[str, Tensor]]
"""By the name of the parameter, then by what they are; stacked where there are several models."""


def read_moments(
    optimizer: torch.optim.Optimizer, members: Members, models: Sequence[nn.Module], narrow: Sequence[Narrow] | None
) -> Moments:
    """The optimiser's tensors, zero for what was taken out.

    Args:
        optimizer: of the members.
        members: that are trained.
        models: that they are, whole.
        narrow: the parts of them that the members are, unless they are whole.
    """
    moments = {name: dict(optimizer.state.get(parameter, {})) for name, parameter in members.parameters.items()}
    if narrow is None:
        return moments
    whole = dict(models[0].named_parameters())
    for name, kinds in moments.items():
        for kind, tensor in kinds.items():
            if tensor.ndim > 0:
                zeros = [torch.zeros_like(whole[name], requires_grad=False) for _ in narrow]
                for each, target, part in zip(narrow, zeros, _apart(tensor, members), strict=True):
                    each.put_into(target, name, part)
                kinds[kind] = _together(zeros, members)
    return moments


def write_moments(
    optimizer: torch.optim.Optimizer, members: Members, narrow: Sequence[Narrow] | None, moments: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Let the optimiser go on from tensors that ``read_moments`` gave, of the same models, whole or narrower."""
    for name, parameter in members.parameters.items():
        state = {}
        for kind, tensor in moments.get(name, {}).items():
            if tensor.ndim == 0:
                state[kind] = tensor.clone()
                continue
            if narrow is not None:
                parts = [each.part_of(name, whole) for each, whole in zip(narrow, _apart(tensor, members), strict=True)]
                tensor = _together(parts, members)
            state[kind] = torch.empty_like(parameter, requires_grad=False).copy_(tensor)  # In memory as the parameter is.
        if state:
            optimizer.state[parameter] = state


def _apart(tensor: Tensor, members: Members) -> Sequence[Tensor]:
    return [tensor] if members.alone else tensor.unbind()


def _together(tensors: list[Tensor], members: Members) -> Tensor:
    return tensors[0] if members.alone else torch.stack(tensors)
