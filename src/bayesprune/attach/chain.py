"""Gate places in a plain chain of layers: nested ``nn.Sequential`` of linear layers, convolutions, norms, activations and pooling.

As in the paper, convolutions are gated at their outputs (after the norm and activation that follow, unless asked otherwise) and linear
layers at their inputs, the network's own inputs included.
"""

from dataclasses import dataclass

from torch import nn

from bayesprune.errors import InputError
from bayesprune.models.description import GatePlace

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
ACTIVATIONS = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh,
    nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.LogSigmoid,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
POOLINGS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


@dataclass(frozen=True)
class LeftAlone:
    """A layer whose units get no gate, and why."""

    layer: str
    reason: str


def chain_places(model: nn.Module, before_norm: bool = False) -> tuple[list[GatePlace], list[LeftAlone]]:
    """The gate places of a chain in network order, and the layers that are left alone.

    Args:
        model: an ``nn.Sequential``, nested ones included, or a single layer.
        before_norm: gate convolutions right at their outputs, as in the paper.

    Raises:
        InputError: the model is not such a chain.
    """
    chain = _flatten(model, "")
    modules = [module for _, module in chain]
    places: list[GatePlace] = []
    left_alone: list[LeftAlone] = []
    for index, (path, module) in enumerate(chain):
        if not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            if any(parameter.ndim > 1 for parameter in module.parameters()):
                left_alone.append(LeftAlone(path, f"{type(module).__name__} is not a layer that sparsify knows"))
            continue
        if sum(other is module for other in modules) > 1:
            left_alone.append(LeftAlone(path, "the layer stands in several places of the chain"))
        elif isinstance(module, nn.Linear):
            if _last_channels(modules[:index]) == module.in_features:
                left_alone.append(LeftAlone(path, "its inputs are the channels of a convolution that is gated already"))
            else:
                places.append(GatePlace(path, "input", module.in_features, controls=path, controls_dim="inputs"))
        elif (reason := _why_not(modules, index)) is not None:
            left_alone.append(LeftAlone(path, reason))
        else:
            site = path if before_norm else chain[_end_of_block(modules, index)][0]
            places.append(GatePlace(site, "output", module.out_channels, controls=path, controls_dim="outputs"))
    return places, left_alone


def _flatten(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        if path == "" and not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            raise InputError(
                f"sparsify does not know where gates go in a {type(module).__name__}: give a network of bayesprune.models, "
                "an nn.Sequential of layers, or a model that states its gate_places()"
            )
        return [(path, module)]
    prefix = f"{path}." if path else ""
    return [pair for name, child in module._modules.items() if child is not None for pair in _flatten(child, prefix + name)]


def _why_not(modules: list[nn.Module], index: int) -> str | None:
    """Why the outputs of the convolution at ``index`` cannot be gated; None where they can."""
    convolution = modules[index]
    if getattr(convolution, "groups", 1) != 1:
        return "the convolution is grouped: its channels cannot be removed one by one"
    for module in modules[index + 1 :]:
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            groups = getattr(module, "groups", 1)
            return None if groups == 1 else "the convolution that reads its channels is grouped"
        if not isinstance(module, (*BATCH_NORMS, *ACTIVATIONS, *POOLINGS, nn.Flatten)):
            return f"{type(module).__name__} follows, which is not known to treat channels one by one"
    return "its channels are the network's outputs"


def _end_of_block(modules: list[nn.Module], index: int) -> int:
    """The last of the norm and activations that follow a convolution, as long as they belong to it alone."""
    end = index
    for following in range(index + 1, len(modules)):
        module = modules[following]
        shared = sum(other is module for other in modules) > 1
        if shared or not isinstance(module, (*BATCH_NORMS, *ACTIVATIONS)):
            break
        end = following
    return end


def _last_channels(before: list[nn.Module]) -> int | None:
    """The channels of the convolution that feeds a linear layer through norms, activations and pooling; None if something else does."""
    for index in range(len(before) - 1, -1, -1):
        module = before[index]
        if isinstance(module, CONVOLUTIONS):
            gated = getattr(module, "groups", 1) == 1 and sum(other is module for other in before) == 1
            return module.out_channels if gated else None
        if not isinstance(module, (*BATCH_NORMS, *ACTIVATIONS, *POOLINGS, nn.Flatten)):
            return None
    return None
