"""Inputs of a batch that need the same units, or fewer."""

import torch
from torch import Tensor


def grouped(needed: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Inputs whose masks are the same, or part of another's, and the units that they need together.

    Args:
        needed: which units each input needs, of shape (batch, units).
    """
    masks, which = torch.unique(needed, dim=0, return_inverse=True)
    hosts: list[int] = []
    host_of = torch.empty(len(masks), dtype=torch.int64)
    for number in torch.argsort(masks.sum(dim=1), descending=True).tolist():
        inside = [host for host in hosts if not bool((masks[number] & ~masks[host]).any())]
        if not inside:
            hosts.append(number)
        host_of[number] = inside[-1] if inside else number  # The last of them is the smallest.
    owner = host_of.to(needed.device)[which]
    return [(torch.nonzero(owner == host).squeeze(1), torch.nonzero(masks[host]).squeeze(1)) for host in hosts]
