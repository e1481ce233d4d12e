"""Inputs of a batch that need the same units, or fewer."""

import torch
from torch import Tensor


def grouped(needed: Tensor, most: float = float("inf")) -> list[tuple[Tensor, Tensor]]:
    """Inputs whose masks are the same, or part of another's, and the units that they need together.

    Args:
        needed: which units each input needs, of shape (batch, units).
        most: groups that are of use; where there are more, none are given.
    """
    masks, which = torch.unique(needed, dim=0, return_inverse=True)
    sizes = masks.sum(dim=1)
    inside = masks.float() @ (~masks).float().T == 0  # Row by row: which masks have all units of this one.
    largest = inside.sum(dim=1) == 1
    hosts = torch.nonzero(largest).squeeze(1)
    if len(hosts) > most:
        return []
    wasted = torch.where(inside[:, hosts], sizes[hosts], needed.shape[1] + 1)
    owner = wasted.argmin(dim=1)[which]
    return [
        (torch.nonzero(owner == number).squeeze(1), torch.nonzero(masks[host]).squeeze(1)) for number, host in enumerate(hosts.tolist())
    ]
