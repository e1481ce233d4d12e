"""A layer behind a mask, computed from the units that an input needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.adaptive.choice import Choice
from bayesprune.adaptive.grouping import grouped
from bayesprune.adaptive.native.gated_convolution import convolved_size
from bayesprune.adaptive.segments import Segment
from bayesprune.adaptive.slices import Slices
from bayesprune.adaptive.ways import FUSED, GATHER, PRODUCT, WHOLE, Way

CONVOLVE: Mapping[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_SUM = 0


class NothingNeeded(Exception):  # noqa: N818  No error: the quickest way out of a network whose result is known.
    """No input of the batch needs a unit of a layer on which everything behind it depends."""


class AdaptiveLayer(nn.Module):
    """Multiplies an activation by a mask and computes the layer behind it, from the units that the mask leaves if that is faster.

    It holds the weights once more, unit by unit, so that those of a few units lie together.

    Args:
        segment: what it stands for.
        decides: whether the network's results depend on nothing else, so that they are known where no unit is needed.
    """

    by_unit: Tensor
    biases: Tensor | None
    places: Tensor
    selection: Tensor | None

    def __init__(self, segment: Segment, decides: bool = False) -> None:
        super().__init__()
        self.layer, self.operations = segment.layer, segment.operations
        self.rank, self.channel_dim, self.units, self.each = segment.rank, segment.channel_dim, segment.units, segment.each
        self.decides = decides
        self.register_buffer("places", segment.places, persistent=False)
        self.register_buffer("selection", segment.selection, persistent=False)
        self.register_buffer("by_unit", torch.empty(0), persistent=False)
        self.register_buffer("biases", None, persistent=False)
        self.refresh()
        more: tuple[Way, ...] = (FUSED,) if self._takes_numbers else (PRODUCT, WHOLE) if self._has_patches else ()
        self.ways: tuple[Way, ...] = (GATHER, *more)
        self.choices: dict[int, Choice] = {}
        """What to do for batches of a size; others are computed in full."""
        self.slices = Slices()

    @property
    def _takes_numbers(self) -> bool:
        """Whether an input of the layer is one number a unit."""
        return self.rank == 2 and self.each == 1 and isinstance(self.layer, nn.Linear)

    @property
    def _has_patches(self) -> bool:
        """Whether the layer is a convolution that can be written as a product."""
        return isinstance(self.layer, nn.Conv2d) and not isinstance(self.layer.padding, str)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the layer's weights: (units, inputs of a unit, ..., outputs), zeros for inputs that the layer does not have."""
        inputs = self.layer.weight.movedim(0, -1)  # type: ignore[operator]
        whole = inputs.new_zeros((self.units * self.each, *inputs.shape[1:]))
        whole[self.places] = inputs
        self.by_unit = whole.view(self.units, self.each, *inputs.shape[1:])
        bias: Any = self.layer.bias
        self.biases = None if bias is None else bias.clone(memory_format=torch.contiguous_format)
        self.slices = Slices()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        choice = self.choices.get(x.shape[0])
        if choice is None:
            return self.in_full(x, mask)
        units, total = needed_units(mask)
        if units.shape[0] == 0 and self.decides:
            raise NothingNeeded
        way = choice.way_for(units.shape[0], total)
        if way is not None and way != WHOLE:
            return self.from_units(way, x, mask, units)
        groups = grouped(mask != 0, choice.most_groups) if x.shape[0] > 1 and choice.groups_could_pay(total) else []
        if len(groups) > 1 and choice.groups_pay([(len(rows), len(own)) for rows, own in groups]):
            return self._in_groups(choice, x, mask, groups)
        return self.in_full(x, mask) if way is None else self.from_units(way, x, mask, units)

    def in_full(self, x: Tensor, mask: Tensor) -> Tensor:
        """As the compacted network does it."""
        y = x * self._spread(mask)
        if self.selection is not None:
            y = y.index_select(self.channel_dim, self.selection)
        return self.layer(self._prepared(y))  # type: ignore[no-any-return]

    def from_units(self, way: Way, x: Tensor, mask: Tensor, units: Tensor) -> Tensor:
        """From these units, which are all that any input of the batch needs."""
        if way == FUSED:
            return self._fused(x, mask, units) if x.shape[0] == 1 else self._fused_batch(x, mask, mask != 0)
        if way == WHOLE:
            return self._product(self._prepared(x * self._spread(mask)), self.by_unit)
        if units.shape[0] == 0:
            units = units.new_zeros(1)  # A channel of zeros: the result is the bias, in its shape.
        y = self._prepared(x.index_select(self.channel_dim, units) * self._spread(mask.index_select(1, units)))
        return self._gathered(y, units) if way == GATHER else self._product(y, self.by_unit.index_select(0, units))

    def _prepared(self, y: Tensor) -> Tensor:
        """What stands between mask and layer, carried out."""
        for operation in self.operations:
            y = operation(y)
        return y

    def _gathered(self, y: Tensor, units: Tensor) -> Tensor:
        layer: Any = self.layer
        if isinstance(layer, nn.Linear):
            return F.linear(y, self.by_unit.index_select(0, units).flatten(0, 1).T, layer.bias)
        weight = self.slices.of(units, self.by_unit)
        return CONVOLVE[weight.ndim](y, weight, layer.bias, layer.stride, layer.padding, layer.dilation)

    def _product(self, y: Tensor, by_unit: Tensor) -> Tensor:
        layer: Any = self.layer
        patches = F.unfold(y, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT
        weights = by_unit.view(patches.shape[2], -1)
        # For one input neither factor is copied.
        products = (patches[0] @ weights)[None] if y.shape[0] == 1 else patches @ weights
        if layer.bias is not None:
            products = products + layer.bias
        sizes = convolved_size(y.shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return products.mT.reshape(y.shape[0], -1, *sizes)

    def _fused(self, x: Tensor, mask: Tensor, units: Tensor) -> Tensor:
        values = x[0].index_select(0, units) * mask[0].index_select(0, units)
        return self._summed(values, units, units.new_zeros(1))

    def _fused_batch(self, x: Tensor, mask: Tensor, needed: Tensor) -> Tensor:
        rows, units = torch.nonzero(needed, as_tuple=True)
        counts = needed.sum(dim=1)
        return self._summed(x[rows, units] * mask[rows, units], units, counts.cumsum(0) - counts)

    def _summed(self, values: Tensor, units: Tensor, starts: Tensor) -> Tensor:
        """Sums of rows of the weights with these factors, a sum for each input, whose rows begin where ``starts`` says."""
        for operation in self.operations:
            values = operation(values.unsqueeze(1)).squeeze(1)
        result = torch.embedding_bag(self.by_unit.flatten(1), units, starts, False, _SUM, False, values)[0]
        bias = self.layer.bias
        return result if bias is None else result + bias  # type: ignore[operator]

    def _in_groups(self, choice: Choice, x: Tensor, mask: Tensor, groups: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        ways = [choice.way_of_group(len(rows), len(units))[1] for rows, units in groups]
        parts = [
            self.from_units(way, x.index_select(0, rows), mask.index_select(0, rows), units)
            for way, (rows, units) in zip(ways, groups, strict=True)
        ]
        order = torch.argsort(torch.cat([rows for rows, _ in groups]))
        return torch.cat(parts).index_select(0, order)

    def _spread(self, mask: Tensor) -> Tensor:
        """The mask in the shape of the activation."""
        if self.rank == 2:
            return mask
        ones = (1,) * (self.rank - 2)
        return mask.view(*mask.shape, *ones) if self.channel_dim == 1 else mask.view(mask.shape[0], *ones, mask.shape[1])

    def _apply(self, *arguments: Any, **keywords: Any) -> "AdaptiveLayer":
        self.by_unit, self.biases = self.by_unit.new_empty(0), None  # Taken over anew: a memory format is for the layer's own weights.
        super()._apply(*arguments, **keywords)  # type: ignore[no-untyped-call]
        self.refresh()
        return self


def needed_units(mask: Tensor) -> tuple[Tensor, int]:
    """The units that any input of a batch needs, and how many all inputs need added up."""
    if mask.shape[0] == 1:
        units = torch.nonzero(mask[0]).squeeze(1)
        return units, units.shape[0]
    needed = mask != 0
    return torch.nonzero(needed.any(dim=0)).squeeze(1), int(needed.sum())
