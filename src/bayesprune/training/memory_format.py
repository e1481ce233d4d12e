"""How images lie in memory while a network is trained: pixel by pixel (``channels_last``) where its convolutions are faster so."""

import torch
from torch import nn

from bayesprune.prediction import evaluating
from bayesprune.state import as_before
from bayesprune.training.sources import BatchSource, first_inputs

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_PIXELS, _PLANES = torch.channels_last, torch.contiguous_format
_WIDE = 256
"""Channels above which convolutions in float32 take nearly all of a processor's time, and no less of it in one format than in the other:
of the networks in results/memory-format.jsonl, narrower ones gain up to 1.4 times, and wider ones nothing."""


def lay_out(model: nn.Module, source: BatchSource, precision: torch.dtype) -> bool:
    """Put a network whose convolutions gain from it into ``channels_last``, if its code takes that; whether it did.

    On a processor pooling is many times as fast then, and convolutions of few channels are faster; layers in bfloat16 gain on GPUs.
    Code may count on the other format, as ``x.view(len(x), -1)`` behind a convolution does.

    Args:
        model: to be trained.
        source: of its inputs.
        precision: that layers are computed in.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
    if not layers or not all(_gains(layer, precision) for layer in layers):
        return False
    if all(layer.weight.is_contiguous(memory_format=_PIXELS) for layer in layers):
        return False
    model.to(memory_format=_PIXELS)  # type: ignore[call-overload]
    if not _runs(model, source):
        give_back(model)
        return False
    return True


def give_back(model: nn.Module) -> None:
    """Undo ``lay_out``."""
    model.to(memory_format=_PLANES)  # type: ignore[call-overload]


def _gains(layer: nn.Conv2d | nn.ConvTranspose2d, precision: torch.dtype) -> bool:
    if layer.weight.dtype != torch.float32 or precision != torch.float32:
        return layer.weight.dtype == torch.float32
    return layer.weight.device.type == "cpu" and max(layer.in_channels, layer.out_channels) <= _WIDE


def _runs(model: nn.Module, source: BatchSource) -> bool:
    with torch.no_grad(), torch.random.fork_rng(), evaluating(model), as_before(model):
        try:
            model(first_inputs(source))
        except RuntimeError:
            return False
    return True
