"""Layers as they could be: what an analysis finds with these holds for any numbers in the layers, as before and after training."""

import torch
from torch import Tensor, nn

from bayesprune.graph.layer_types import BATCH_NORMS, INSTANCE_NORMS, MIXING_NORMS

_NORMS = (*BATCH_NORMS, *INSTANCE_NORMS, *MIXING_NORMS)


def stand_in(layer: nn.Module) -> nn.Module:
    """A layer of the same kind and size that does to constants what almost all of them do: zero becomes something else than zero.

    A new batch normalisation maps zero to zero, and one that begins a residual block may be zero altogether; a trained one does neither.
    """
    likely = object.__new__(type(layer))  # copy.copy refuses parametrised layers.
    likely.__dict__.update(layer.__dict__)
    likely._parameters, likely._buffers = dict(layer._parameters), dict(layer._buffers)
    tensors = {name: tensor.detach() for name, tensor in (likely._parameters | likely._buffers).items() if isinstance(tensor, Tensor)}
    if "bias" in tensors:
        likely._parameters["bias"] = nn.Parameter(_positive(tensors["bias"]), requires_grad=False)
    if not isinstance(layer, _NORMS):
        return likely
    if "weight" in tensors:
        likely._parameters["weight"] = nn.Parameter(torch.ones_like(tensors["weight"]), requires_grad=False)
    if "running_mean" in tensors:
        likely._buffers["running_mean"] = -_positive(tensors["running_mean"])
        likely._buffers["running_var"] = torch.ones_like(tensors["running_mean"])
    return likely


def _positive(like: Tensor) -> Tensor:
    """Positive numbers, each another."""
    return torch.linspace(0.5, 1.5, like.numel(), dtype=like.dtype, device=like.device).reshape(like.shape)
