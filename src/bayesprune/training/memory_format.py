"""How images lie in memory while a network is trained: pixel by pixel (``channels_last``) where its convolutions are faster so."""

from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.example_inputs import tensors_in
from bayesprune.graph.calls import run_example
from bayesprune.graph.tracing import relative_difference
from bayesprune.training.sources import BatchSource, first_inputs

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_PIXELS, _PLANES = torch.channels_last, torch.contiguous_format
_WIDE = 256
"""Channels above which convolutions in float32 take nearly all of a processor's time, and no less of it in one format than in the other:
of the networks in results/memory-format.jsonl, narrower ones gain up to 1.4 times, and wider ones nothing."""
_SAME = 1e-3
"""A larger relative difference is more than rounding: code that reads strides may mean something else in another format."""


def lay_out(model: nn.Module, source: BatchSource, precision: torch.dtype) -> list[nn.Parameter]:
    """Put the weights of convolutions into ``channels_last`` where the network gains from it; those that are now.

    On a processor pooling is many times as fast then, and convolutions of few channels are faster; layers in bfloat16 gain on GPUs. In
    float32 this is for the package's own networks: code of others, their losses and their backward passes may count on the other format,
    as ``x.view(len(x), -1)`` behind a convolution does. In bfloat16 a trial tells.

    Args:
        model: to be trained.
        source: of its inputs.
        precision: that layers are computed in.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
    weights = [weight for layer in layers if (weight := layer._parameters.get("weight")) is not None]
    if len(weights) < len(layers) or not all(weight.dtype == torch.float32 for weight in weights):
        return []
    if precision == torch.float32 and not _gains(model, layers, weights):
        return []
    changed = [weight for weight in weights if weight.is_contiguous() and not weight.is_contiguous(memory_format=_PIXELS)]
    if changed:
        expected = _outputs(model, source)
        _convert(changed, _PIXELS)
        if not _agree(expected, _outputs(model, source)):
            give_back(changed)
            return []
    return changed


def give_back(weights: list[nn.Parameter]) -> None:
    """Undo ``lay_out``."""
    _convert(weights, _PLANES)


def _convert(weights: list[nn.Parameter], order: torch.memory_format) -> None:
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=order)


def _gains(model: nn.Module, layers: list[Any], weights: list[nn.Parameter]) -> bool:
    own = type(model).__module__.startswith("bayesprune.models.")
    narrow = all(max(layer.in_channels, layer.out_channels) <= _WIDE for layer in layers)
    return own and narrow and all(weight.device.type == "cpu" for weight in weights)


def _outputs(model: nn.Module, source: BatchSource) -> list[Tensor] | None:
    """What the model computes for an example; None if its code does not take that."""
    with torch.random.fork_rng():
        try:
            return tensors_in(run_example(model, first_inputs(source)))
        except InputError:
            return None


def _agree(some: list[Tensor] | None, others: list[Tensor] | None) -> bool:
    if some is None or others is None:
        return False
    return all(relative_difference(a, b) <= _SAME for a, b in zip(some, others, strict=True))
