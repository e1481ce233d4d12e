"""How images lie in memory while a network is trained: pixel by pixel (``channels_last``) where its convolutions are faster so."""

import torch
from torch import Tensor, nn

from bayesprune.prediction import evaluating
from bayesprune.state import as_before
from bayesprune.training.sources import BatchSource, first_inputs

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_PIXELS, _PLANES = torch.channels_last, torch.contiguous_format


def lay_out(model: nn.Module, source: BatchSource, precision: torch.dtype) -> bool:
    """Put a network whose convolutions gain from it into ``channels_last``, if its code takes that; whether it did.

    On a processor pooling is many times as fast then, and convolutions of few channels twice; on a GPU layers in bfloat16 gain. Code may
    count on the other format, as ``x.view(len(x), -1)`` behind a convolution does.

    Args:
        model: to be trained.
        source: of its inputs.
        precision: that layers are computed in.
    """
    weights = [layer.weight for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
    if not any(_gains(weight, precision) for weight in weights) or all(weight.is_contiguous(memory_format=_PIXELS) for weight in weights):
        return False
    model.to(memory_format=_PIXELS)  # type: ignore[call-overload]
    if not _runs(model, source):
        give_back(model)
        return False
    return True


def give_back(model: nn.Module) -> None:
    """Undo ``lay_out``."""
    model.to(memory_format=_PLANES)  # type: ignore[call-overload]


def _gains(weight: Tensor, precision: torch.dtype) -> bool:
    return weight.dtype == torch.float32 and (weight.device.type == "cpu" or precision != torch.float32)


def _runs(model: nn.Module, source: BatchSource) -> bool:
    with torch.no_grad(), torch.random.fork_rng(), evaluating(model), as_before(model):
        try:
            model(first_inputs(source))
        except RuntimeError:
            return False
    return True
