"""Which unit each feature of an activation belongs to."""

from collections.abc import Iterator

import torch
from torch import Tensor, fx

from bayesprune.attach.sources import Sources
from bayesprune.gates import Gate
from bayesprune.removal.analysis import shape_of
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.movement import Movement, moved
from bayesprune.removal.status import compressed, is_along_only, on_dimension


def spread(gate: Gate, per_unit: Tensor, rank: int) -> Tensor:
    """A vector over units as a status of the gate's input."""
    units = gate.units
    if units.groups is not None:
        per_unit = per_unit[units.groups.cpu()]
        if units.groups.ndim > 1:
            return per_unit.unsqueeze(0)
    return on_dimension(per_unit, units.channel_dim % rank, rank)


def is_flattened(source: fx.Node, read: fx.Node) -> bool:
    """Whether channels and positions, or positions and features, have become one dimension: units finer than those of any layer."""
    return len(shape_of(read)) == 2 < len(shape_of(source)) and shape_of(read)[1] > max(shape_of(source)[1], shape_of(source)[-1])


def of_products(sources: Sources, read: fx.Node) -> list[Tensor]:
    """The units of an activation that comes out of attention or a matrix product, the finest first; none if heads are mixed.

    Units are whole heads, because what is removed from one head must be removed from all. Where there is just one, they are its features,
    or else all of them together.
    """
    shape = shape_of(sources.of(read))
    width, features = shape[-1], shape_of(read)[-1]
    if features % width:
        return []
    heads = features // width
    leading = torch.arange(torch.Size(shape[:-2]).numel()) % heads
    labels = leading.reshape(*shape[:-2], 1, 1).expand(shape)
    for step in sources.path(read):
        if isinstance(rule_for(sources.analysis, step), Movement):
            labels = moved(sources.analysis, step, labels)
    status = compressed(labels)
    if not is_along_only(status, -1):
        return []
    owner = status.flatten().expand(features).clone()
    return [owner] if heads > 1 else [torch.arange(features), torch.zeros(features, dtype=torch.int64)]


def of_outputs(sources: Sources, layer: fx.Node) -> Iterator[Tensor]:
    """The units that the outputs of a linear layer could be, the finest first: features, or the channels that they become part of."""
    features = shape_of(layer)[-1]
    yield torch.arange(features)
    for _, read in sources.reads(layer):
        channels = _channels(sources, layer, read)
        if channels is not None:
            yield channels
            return


def _channels(sources: Sources, layer: fx.Node, read: fx.Node) -> Tensor | None:
    """The channel of an image or sequence in which each output of a linear layer ends up, as in a generator; None if it is not in one."""
    features = torch.arange(shape_of(layer)[-1])
    rank = len(shape_of(layer))
    places = on_dimension(features, rank - 1, rank).expand(shape_of(layer))
    for step in sources.path(read):
        if isinstance(rule_for(sources.analysis, step), Movement):
            places = moved(sources.analysis, step, places)
        elif shape_of(step) != tuple(places.shape):
            break  # A pooling or an upsampling: behind it channels are still in dimension 1.
    if places.ndim < 3 or places.shape[1] != shape_of(read)[1] or len(features) == places.shape[1]:
        return None
    channel = on_dimension(torch.arange(places.shape[1]), 1, places.ndim).expand(places.shape)
    owner = torch.zeros_like(features)
    owner[places.flatten()] = channel.flatten()
    return owner if torch.equal(owner[places], channel) else None
