"""Gates set to chosen masks, without training."""

import torch
from torch import nn

from bayesprune.gates import gates

PRUNED = -20.0
"""A raw a that puts E[pi] far under the threshold."""


def prune_at_random(gated: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """Prune a random share of every gate's units, and give the kept ones random means. BB gates only."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in gates(gated).values():
            kept = torch.rand(gate.num_units, generator=generator) >= share
            means = 2.0 + torch.randn(gate.num_units, generator=generator)
            gate.raw_a.copy_(torch.where(kept, means, PRUNED).to(gate.raw_a))
    return gated


def prune_units(gated: nn.Module, pruned: dict[str, list[int]]) -> nn.Module:
    """Prune the named units and keep all others."""
    with torch.no_grad():
        for name, gate in gates(gated).items():
            gate.raw_a.fill_(2.0)
            gate.raw_a[pruned.get(name, [])] = PRUNED
    return gated
