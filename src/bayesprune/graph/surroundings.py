"""Without the modes of torch that a caller may be in: what we make and compare must not depend on them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock

import torch

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_TURN = RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither autocast nor inference mode; whether gradients are recorded stays as it is. Also a decorator.

    Under autocast a network and its smaller form round differently in 16 bits, which looks like another network. Tensors that are made in
    inference mode can never be trained. Other libraries run whole epochs in one or the other.
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())  # Leaving inference mode switches gradients on.
        yield


@contextmanager
def in_turn() -> Iterator[None]:
    """Undisturbed, and one thread at a time: torch's tracers change what it means to call a module, for all threads. Also a decorator."""
    with _TURN, undisturbed():
        yield
