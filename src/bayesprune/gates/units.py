"""Which elements of an activation a gate's units cover."""

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError


class Units(nn.Module):
    """The correspondence between ``count`` units and the elements of an input whose first dimension is the batch.

    Without ``groups`` each channel along ``channel_dim`` is a unit. With a vector of groups, entry c names the unit of channel c; with a
    tensor of groups, its entries name the unit of each element of a sample, broadcast over the dimensions of size one.
    """

    groups: Tensor | None

    def __init__(self, count: int, channel_dim: int = 1, groups: Tensor | None = None) -> None:
        super().__init__()
        if count < 0:
            raise InputError(f"a gate cannot have {count} units")
        if type(channel_dim) is not int or channel_dim not in (1, -1):
            raise InputError(f"channel_dim is 1, or -1 for inputs with channels last, not {channel_dim}")
        self.count = count
        self.channel_dim = channel_dim
        if groups is not None:
            groups = torch.as_tensor(groups, dtype=torch.int64)
            if groups.ndim == 0 or (groups.numel() and not 0 <= int(groups.min()) <= int(groups.max()) < count):
                raise InputError(f"groups must name units from 0 to {count - 1} for each element")
        self.register_buffer("groups", groups, persistent=False)

    @property
    def channels(self) -> int | None:
        """How many channels an input must have; None where groups cover elements rather than channels."""
        if self.groups is None:
            return self.count
        return len(self.groups) if self.groups.ndim == 1 else None

    def check(self, x: Tensor) -> None:
        """Refuse an input that the units do not fit."""
        if not 2 <= x.ndim <= 5:
            raise InputError(f"a gate takes inputs of 2 to 5 dimensions with the batch first, not of shape {tuple(x.shape)}")
        if self.groups is not None and self.groups.ndim > 1:
            fits = self.groups.ndim == x.ndim - 1 and all(g in (1, n) for g, n in zip(self.groups.shape, x.shape[1:], strict=True))
            if not fits:
                raise InputError(f"groups of shape {tuple(self.groups.shape)} do not fit samples of shape {tuple(x.shape[1:])}")
        elif x.shape[self.channel_dim] != self.channels:
            raise InputError(
                f"a gate over {self.channels} channels in dimension {self.channel_dim} was given an input of shape {tuple(x.shape)}"
            )

    def spread(self, mask: Tensor, x: Tensor) -> Tensor:
        """Lay a mask of shape ``(count,)`` or ``(batch, count)`` out so that it multiplies the input."""
        if self.groups is not None:
            mask = mask[..., self.groups]
            if self.groups.ndim > 1:
                return mask
        if self.channel_dim == -1:
            return mask if mask.ndim == 1 else mask.reshape(mask.shape[0], *[1] * (x.ndim - 2), mask.shape[1])
        return mask.reshape(*mask.shape, *[1] * (x.ndim - 2))

    def mean(self, x: Tensor) -> Tensor:
        """The average of the elements of each unit, sample by sample: ``(batch, count)``; global average pooling for feature maps."""
        if self.groups is not None and self.groups.ndim > 1:
            values, owners = x.flatten(1), self.groups.expand(x.shape[1:]).flatten()
        else:
            channel = self.channel_dim % x.ndim
            others = [dim for dim in range(1, x.ndim) if dim != channel]
            values = x.mean(dim=others) if others else x
            if self.groups is None:
                return values
            owners = self.groups
        sums = values.new_zeros(x.shape[0], self.count).index_add(1, owners, values)
        sizes = values.new_zeros(self.count).index_add(0, owners, torch.ones_like(owners, dtype=values.dtype))
        return sums / sizes.clamp(min=1.0)

    def total(self, per_channel: Tensor) -> Tensor:
        """Sum a vector over channels, or over the elements of a flattened sample where groups cover those, into one over units."""
        if self.groups is None:
            return per_channel
        owners = self.groups.flatten()
        if len(owners) != len(per_channel):
            raise InputError(f"groups of shape {tuple(self.groups.shape)} do not fit a layer with {len(per_channel)} channels")
        return per_channel.new_zeros(self.count).index_add(0, owners, per_channel)
