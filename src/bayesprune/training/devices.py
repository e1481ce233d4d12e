"""Devices to train on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bayesprune.errors import InputError

_ADVICE = "choose 'cuda' where there is an NVIDIA GPU; 'cpu' always works"


def usable_device(name: torch.device | str) -> torch.device:
    """A device by name, or an error that says why not."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device '{name}' cannot be used here: torch knows no such device; {_ADVICE}") from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used here ({reason}); {_ADVICE}") from error
    return device


def gains_from_bfloat16(device: torch.device | str) -> bool:
    """Whether a device has instructions for bfloat16, as far as torch can tell. A processor without them is faster in float32."""
    if not str(device).startswith("cpu"):
        return True
    tell = getattr(torch.cpu, "get_capabilities", dict)  # torch before 2.12 has no such function.
    return any(there for name, there in tell().items() if "bf16" in name)


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Let an NVIDIA GPU multiply matrices with its tensor cores meanwhile: float32 numbers are rounded to 10 bits before (TF32)."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
