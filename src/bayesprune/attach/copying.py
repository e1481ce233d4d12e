"""Copies of users' models, some of which torch cannot copy."""

import copy

from torch import nn

from bayesprune.errors import InputError, first_line


def copy_of(model: nn.Module) -> nn.Module:
    """A copy with tensors of its own.

    Raises:
        InputError: torch cannot copy it.
    """
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied, and this works on a copy: {first_line(error)}. If its code keeps a tensor of the "
            "forward in an attribute, let it keep tensor.detach(); if the old torch.nn.utils.weight_norm or spectral_norm computes its "
            "weights, use torch.nn.utils.parametrizations.weight_norm or spectral_norm instead"
        ) from error
