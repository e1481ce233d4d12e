"""Ordinary dropout with a fixed rate, drawn from the keyed noise of `bayesprune.noise`."""

import torch
from torch import Tensor

from bayesprune.errors import InputError
from bayesprune.noise import NoisyModule


class KeyedDropout(NoisyModule):
    """Zeroes each element with probability ``p`` and scales the rest by ``1 / (1 - p)``; the identity in eval mode or when not enabled.

    ``torch.nn.Dropout`` would draw something else when models are compiled or stacked; this one does not.

    Attributes:
        p: probability of a zero.
        enabled: a switch apart from train and eval mode, for networks that need no fixed dropout once they carry gates.
    """

    noise_draws = 1

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise InputError(f"a dropout rate is at least 0 and less than 1, not {p}")
        self.p = p
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.enabled):
            return x
        kept = self.uniform(0, x.shape, x, samples=x.shape[0]) >= self.p
        return torch.where(kept, x / (1.0 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}, enabled={self.enabled}"
