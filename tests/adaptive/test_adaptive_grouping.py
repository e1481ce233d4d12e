"""Inputs with nested masks share a group."""

import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from bayesprune.adaptive.grouping import grouped

MASKS = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=9)).map(torch.from_numpy)


@pytest.mark.parametrize(
    ("needed", "groups"),
    [
        ([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]], [([0, 1], [0, 1]), ([2, 3], [2])]),
        ([[1, 0], [1, 0], [1, 0]], [([0, 1, 2], [0])]),
        ([[1, 0], [0, 1], [1, 1]], [([0, 1, 2], [0, 1])]),
        ([[0, 0], [0, 0]], [([0, 1], [])]),
        ([[1, 1, 1, 0], [0, 1, 0, 1], [0, 1, 0, 0]], [([0], [0, 1, 2]), ([1, 2], [1, 3])]),  # The smaller of two that fit.
    ],
)
def test_groups_of_a_few_masks(needed, groups):
    found = [(rows.tolist(), units.tolist()) for rows, units in grouped(torch.tensor(needed, dtype=torch.bool))]
    assert sorted(found) == sorted(groups)


@given(needed=MASKS)
def test_every_input_is_in_one_group(needed):
    rows = torch.cat([rows for rows, _ in grouped(needed)])
    assert sorted(rows.tolist()) == list(range(len(needed)))


@given(needed=MASKS)
def test_a_group_has_all_units_that_its_inputs_need_and_no_others(needed):
    for rows, units in grouped(needed):
        assert units.tolist() == torch.nonzero(needed[rows].any(dim=0)).squeeze(1).tolist()


@given(needed=MASKS)
def test_groups_are_the_masks_that_lie_in_no_other(needed):
    masks = {frozenset(torch.nonzero(row).squeeze(1).tolist()) for row in needed}
    largest = {mask for mask in masks if not any(mask < other for other in masks)}
    found = [frozenset(units.tolist()) for _, units in grouped(needed)]
    assert len(found) == len(set(found))
    assert set(found) == largest
