"""How many operations inputs take: a number for each."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.model import AdaptiveModel
from bayesprune.cost import cost
from bayesprune.errors import InputError
from bayesprune.example_inputs import batch_size, tensors_in


@dataclass(frozen=True, eq=False)
class Work:
    """Multiply-accumulates of some inputs, counted as ``cost`` does.

    Attributes:
        compacted: of every input in the compacted network.
        needed: of each, if every layer behind a mask leaves out what it can.
        executed: of each, if it comes alone and every layer is computed in the way that is chosen for it.
    """

    compacted: int
    needed: Tensor
    executed: Tensor


@torch.no_grad()
def count_work(adaptive: AdaptiveModel, *inputs: Any, **keywords: Any) -> Work:
    """Count what each input of a batch takes.

    Args:
        adaptive: the network.
        *inputs: of it.
        **keywords: of it.

    Raises:
        InputError: they are of another size than the example.
    """
    given = (*inputs, *keywords.values())
    if [_size(leaf) for leaf in tensors_in(given)] != [_size(leaf) for leaf in tensors_in(adaptive.example)]:
        raise InputError("operations are counted for inputs of the example's size: make an AdaptiveModel with inputs like these")
    whole = cost(adaptive.compacted, adaptive.example).macs
    masks = adaptive.masks(*inputs, **keywords)
    batch = batch_size(given)
    needed, executed = (torch.full((batch,), whole, dtype=torch.int64) for _ in range(2))
    adapts = 1 in adaptive.plans and adaptive.plans[1].adaptive
    for layer, mask, (_, result) in zip(adaptive.layers, masks, adaptive.shapes, strict=True):
        counts = (mask if layer.selection is None else mask.index_select(1, layer.selection)).count_nonzero(dim=1).cpu()
        spared = _macs_of_a_unit(layer, result) * (layer.places.shape[0] // max(layer.each, 1) - counts)
        needed -= spared
        choice = layer.choices.get(1) if adapts else None
        if adapts and adaptive.runs_natively(layer, 1):
            executed -= spared
        elif choice is not None:
            executed -= torch.where(torch.tensor([choice.leaves_out(count) for count in counts.tolist()]), spared, 0)
    return Work(whole, needed, executed)


def _size(tensor: Tensor) -> torch.Size:
    """Without the batch."""
    return tensor.shape[1:]


def _macs_of_a_unit(layer: AdaptiveLayer, result: torch.Size) -> int:
    """What a unit costs the layer behind it, for one input, given the shape of the layer's result."""
    outputs = layer.layer.weight.shape[0]  # type: ignore[index]
    return layer.by_unit[0].numel() * (math.prod(result[1:]) // int(outputs))
