"""Devices to train on."""

import torch

from bayesprune.errors import InputError


def usable_device(name: torch.device | str) -> torch.device:
    """A device by name, or an error that says why not."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used here ({reason}); 'cpu' always works") from error
    return device
