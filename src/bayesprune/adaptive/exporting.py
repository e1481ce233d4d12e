"""Per-input execution in plain operations, so that other runtimes leave out what an input does not need: torch.export and ONNX.

How many units an input needs is known only while the network runs, so every layer behind a mask gathers them, and the weights that
belong to them, by number. That takes one input at a time.
"""

import os
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from bayesprune.adaptive.example_batches import rows_of
from bayesprune.adaptive.layers import CONVOLVE, AdaptiveLayer
from bayesprune.adaptive.model import AdaptiveModel
from bayesprune.artifact.file import file_to_write
from bayesprune.artifact.onnx import TOLERANCE, check_channels, check_content, difference, onnx_content, quiet_export, reason, required
from bayesprune.errors import InputError
from bayesprune.example_inputs import batch_size, call, tensors_in
from bayesprune.graph.calls import run_example
from bayesprune.storage import write_bytes

Layers: TypeAlias = Literal["all", "chosen"]
"""Which layers leave units out: all behind masks, or those that are faster for it in torch, with batches of one input."""
_LAYERS = ("all", "chosen")
_MOST_COMPARED = 8


def single_input_network(adaptive: AdaptiveModel, *, layers: Layers = "all") -> fx.GraphModule:
    """An adaptive network in plain operations of torch, for batches of one input. It shares its weights.

    Args:
        adaptive: the network; ways for batches of one are chosen now if they were not yet.
        layers: ``"all"`` to leave out units in every layer behind a mask, ``"chosen"`` where ``adaptive.plan(1)`` gains from it.

    Raises:
        InputError: there is no such choice of layers, or the network takes no batches of one.
    """
    if not isinstance(adaptive, AdaptiveModel):
        raise InputError(f"this takes an AdaptiveModel, not {type(adaptive).__name__}: make one with AdaptiveModel(model, example_inputs)")
    if layers not in _LAYERS:
        raise InputError(f"layers is 'all' or 'chosen', not {layers!r}")
    adaptive.prepare(1)
    with torch.no_grad():
        masks = dict(zip(adaptive.layers, adaptive.masks(*adaptive.example), strict=True))
    network = adaptive.parts.with_layers([layer for layer in masks if layers == "all" or 1 in layer.choices])
    for name, layer in list(network.named_modules()):
        if isinstance(layer, AdaptiveLayer):
            network.set_submodule(name, _GatheringLayer(layer, masks[layer]))
    return network.eval()


def exported_program(adaptive: AdaptiveModel, *, layers: Layers = "all") -> ExportedProgram:
    """An adaptive network as ``torch.export`` gives it, for batches of one input, and seen to compute the same on some of the example's.

    Args:
        adaptive: the network.
        layers: see ``single_input_network``.

    Raises:
        InputError: the network cannot be exported, or the program computes something else.
    """
    network, compared = single_input_network(adaptive, layers=layers), _single_inputs(adaptive)
    try:
        with quiet_export(), torch.no_grad():
            program = torch.export.export(network, compared[0])
    except Exception as error:
        raise InputError(f"the adaptive network cannot be exported with torch.export: {reason(error)}") from error
    run = program.module()
    for inputs in compared:
        expected = tensors_in(run_example(adaptive.compacted, inputs))
        with torch.no_grad():
            off = difference(tensors_in(call(run, inputs)), expected)
        if off > TOLERANCE:
            raise InputError(f"the exported program computes something else: it is off by {off:.1e} of the largest output")
    return program


def export_adaptive_onnx(adaptive: AdaptiveModel, path: str | os.PathLike[str], *, layers: Layers = "all") -> None:
    """Write an adaptive network into one ONNX file, for batches of one input.

    It is run with onnxruntime on some of the example's inputs, those that need the fewest and the most units among them, and compared.

    Args:
        adaptive: the network.
        path: of the file; one that is there is replaced when the new one has been checked.
        layers: see ``single_input_network``.

    Raises:
        InputError: the network cannot be exported, the file computes something else, or what ``bayesprune[onnx]`` installs is missing.
        StorageError: the file cannot be written.
    """
    network = single_input_network(adaptive, layers=layers)
    target = file_to_write(path, "network.onnx")
    check_channels(network)
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        required(needed)
    compared = _single_inputs(adaptive)
    content = onnx_content(network, compared[0])
    check_content(adaptive.compacted, compared, content)
    write_bytes(target, content)


class _GatheringLayer(nn.Module):
    """What an ``AdaptiveLayer`` does, for one input, in operations that exporters know.

    Args:
        layer: what it stands for.
        masks: of typical inputs. The unit that most of them need is always computed: there are runtimes that hang on layers without
            channels, and where it is not needed its mask multiplies it by zero.
    """

    by_unit: Tensor
    unneeded: Tensor

    def __init__(self, layer: AdaptiveLayer, masks: Tensor) -> None:
        super().__init__()
        own: Any = layer.layer
        self.operations, self.units, self.each = layer.operations, layer.units, layer.each
        self.channel_dim, self.beside = layer.channel_dim, (1,) * (layer.rank - 2)
        self.convolution = None if isinstance(own, nn.Linear) else (own.stride, own.padding, own.dilation)
        self.bias = own.bias
        unneeded = torch.zeros_like(masks[0])
        unneeded[int(masks.count_nonzero(dim=0).argmax())] = -1.0  # No mask is negative.
        self.register_buffer("unneeded", unneeded)
        by_unit = layer.by_unit.squeeze(1)
        self.register_buffer("by_unit", by_unit if self.convolution is None else by_unit.movedim(-1, 1).contiguous())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        factors = mask[0]
        units = torch.nonzero(factors != self.unneeded).squeeze(1)
        # An exporter cannot know how many there will be, but between which bounds.
        torch._check(units.shape[0] >= 1)  # type: ignore[no-untyped-call]
        torch._check(units.shape[0] <= self.units)  # type: ignore[no-untyped-call]
        factors = factors.index_select(0, units)
        if self.channel_dim == 1:
            factors = factors.view(-1, *self.beside)
        y = x.index_select(self.channel_dim, units) * factors
        for operation in self.operations:
            y = operation(y)
        # By unit, weights lie together: onnxruntime takes several times as long to gather them from the layer's own layout.
        weight = self.by_unit.index_select(0, units)
        if self.each > 1:
            weight = weight.flatten(0, 1)
        if self.convolution is not None:
            return CONVOLVE[y.ndim](y, weight.transpose(0, 1), self.bias, *self.convolution)
        y = y @ weight
        return y if self.bias is None else y + self.bias


def _single_inputs(adaptive: AdaptiveModel) -> list[tuple[Any, ...]]:
    """Some inputs of the example, one by one: from the one that needs the fewest units to the one that needs the most."""
    count = batch_size(adaptive.example)
    needed = sum((each.cpu() for each in adaptive.units_needed(*adaptive.example)), start=torch.zeros(count))
    places = torch.linspace(0, count - 1, min(count, _MOST_COMPARED)).round().long()

    return [rows_of(adaptive.example, torch.tensor([row])) for row in needed.argsort()[places].tolist()]
