"""Parts of weights are kept for masks that come again, as long as there is room."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bayesprune.adaptive import slices as module
from bayesprune.adaptive.slices import Slices

UNITS, OUTPUTS = 6, 3
BY_UNIT = torch.randn(UNITS, 2, 3, 3, OUTPUTS, generator=torch.Generator().manual_seed(0))
OF_ONE = BY_UNIT[:1].nbytes


def numbers(*units):
    return torch.tensor(units, dtype=torch.int64)


@pytest.fixture
def room_for_two(monkeypatch):
    monkeypatch.setattr(module, "_BYTES", 2 * OF_ONE)
    return Slices()


@given(units=st.lists(st.integers(0, UNITS - 1), min_size=1, unique=True).map(sorted))
def test_weights_of_units_as_a_convolution_takes_them(units):
    part = Slices().of(numbers(*units), BY_UNIT)
    assert part.is_contiguous()
    assert torch.equal(part, torch.cat([BY_UNIT[unit] for unit in units]).movedim(-1, 0))


def test_a_mask_that_comes_again_is_not_cut_again():
    kept = Slices()
    first, other = kept.of(numbers(1, 4), BY_UNIT), kept.of(numbers(1, 3), BY_UNIT)
    assert kept.of(numbers(1, 4), BY_UNIT) is first
    assert kept.of(numbers(1, 3), BY_UNIT) is other
    kept.clear()
    again = kept.of(numbers(1, 4), BY_UNIT)
    assert again is not first
    assert torch.equal(again, first)


def test_the_mask_that_was_not_seen_for_longest_makes_room(room_for_two):
    first, second = (room_for_two.of(numbers(unit), BY_UNIT) for unit in (0, 1))
    assert room_for_two.of(numbers(0), BY_UNIT) is first
    room_for_two.of(numbers(2), BY_UNIT)
    assert room_for_two.of(numbers(0), BY_UNIT) is first
    assert room_for_two.of(numbers(1), BY_UNIT) is not second


def test_a_part_that_has_no_room_drives_nothing_out(room_for_two):
    small = room_for_two.of(numbers(0), BY_UNIT)
    large = room_for_two.of(numbers(1, 2, 3), BY_UNIT)
    assert room_for_two.of(numbers(1, 2, 3), BY_UNIT) is not large
    assert room_for_two.of(numbers(0), BY_UNIT) is small


@given(masks=st.lists(st.sets(st.integers(0, UNITS - 1), min_size=1), max_size=30))
def test_never_more_than_there_is_room_for(masks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BYTES", 3 * OF_ONE)
        kept = Slices()
        for mask in masks:
            kept.of(numbers(*sorted(mask)), BY_UNIT)
            assert kept._bytes == sum(part.nbytes for part in kept._kept.values()) <= 3 * OF_ONE


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda kept: pickle.loads(pickle.dumps(kept))], ids=["deepcopy", "pickle"])
def test_a_copy_begins_empty_and_keeps_its_own(copied):
    kept = Slices()
    own = kept.of(numbers(0), BY_UNIT)
    other = copied(kept)
    assert other.of(numbers(0), 2 * BY_UNIT).equal(2 * own)
    assert kept.of(numbers(0), BY_UNIT) is own


def test_what_was_cut_in_inference_mode_can_be_differentiated_through():
    kept = Slices()
    with torch.inference_mode():
        kept.of(numbers(0, 2), BY_UNIT)
    x = torch.randn(1, 4, 5, 5, requires_grad=True)
    F.conv2d(x, kept.of(numbers(0, 2), BY_UNIT)).sum().backward()
    assert x.grad is not None


def test_threads_may_share_them(room_for_two):
    def cut(number):
        unit = number % UNITS
        return torch.equal(room_for_two.of(numbers(unit), BY_UNIT), BY_UNIT[unit].movedim(-1, 0))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(cut, range(400)))
