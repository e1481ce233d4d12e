"""Batches of a size, made up of the example's inputs, and what these will need of a layer."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bayesprune.example_inputs import batch_size


def example_batches(inputs: int, size: int) -> list[Tensor]:
    """Which of the example's inputs make up its batches of a size: all of them, some more than once if they do not come out even."""
    count = max(inputs, 1)
    return list(torch.split(torch.arange(count + (-count) % size) % count, size))


def needs_of_batches(needed: Tensor, size: int) -> list[tuple[int, int]]:
    """How many units any input of a batch needs, and how many all do added up, for batches of the example.

    Where it has fewer inputs than a batch, those that are missing are taken to need units independently, as often as the others.
    """
    if len(needed) >= size:
        return [(int(part.any(dim=0).sum()), int(part.sum())) for part in (needed[rows] for rows in example_batches(len(needed), size))]
    often = needed.double().mean(dim=0)
    return [(round(float((1.0 - (1.0 - often) ** size).sum())), round(float(size * often.sum())))]


def rows_of(example: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
    """Some inputs of the example."""
    now = batch_size(example)
    return tree_map_only(  # type: ignore[no-any-return]
        Tensor, lambda leaf: leaf.index_select(0, rows.to(leaf.device)) if leaf.ndim and leaf.shape[0] == now else leaf, example
    )
