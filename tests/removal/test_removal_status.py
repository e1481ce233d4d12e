"""Statuses against what they stand for, written out in full."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesprune.removal.status import aligned, along, compressed, is_along_only, known, on_dimension, reduced_to

SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)


@st.composite
def statuses(draw, shape=None):
    """The shape of an activation and a status of it: size one along some dimensions."""
    shape = draw(SHAPES) if shape is None else shape
    own = tuple(draw(st.sampled_from([1, size])) for size in shape)
    values = draw(st.lists(st.booleans(), min_size=math.prod(own), max_size=math.prod(own)))
    return shape, torch.tensor(values).reshape(own)


@given(statuses())
def test_compressing_says_the_same_in_the_smallest_form(case):
    shape, status = case
    small = compressed(status.expand(shape))
    assert torch.equal(small.expand(shape), status.expand(shape))
    for dim, size in enumerate(small.shape):
        changes = bool((small.expand(shape) != small.expand(shape).narrow(dim, 0, 1)).any())
        assert (size > 1) == (changes and shape[dim] > 1)


@given(statuses(), st.integers(-4, 3))
def test_along_is_true_where_it_holds_anywhere(case, dim):
    shape, status = case
    dim %= len(shape)
    dense = status.expand(shape)
    assert along(status, dim, shape[dim]).tolist() == [bool(dense.select(dim, index).any()) for index in range(shape[dim])]


@given(SHAPES, st.integers(0, 3))
def test_a_vector_on_a_dimension_changes_along_it_only(shape, dim):
    dim %= len(shape)
    status = on_dimension(torch.arange(shape[dim]), dim, len(shape))
    assert is_along_only(status, dim)
    dense = status.expand(shape)
    assert all((dense.select(dim, index) == index).all() for index in range(shape[dim]))


@given(statuses())
def test_is_along_only(case):
    _, status = case
    for dim in range(status.ndim):
        assert is_along_only(status, dim) == all(size == 1 for other, size in enumerate(status.shape) if other != dim)


@given(statuses(), st.data())
def test_an_operand_sees_what_any_of_its_copies_sees(case, data):
    """Against autograd: an element of the operand matters exactly if the sum over the marked elements depends on it."""
    shape, status = case
    lost = data.draw(st.integers(0, len(shape) - 1))
    operand_shape = tuple(data.draw(st.sampled_from([1, size])) for size in shape[lost:])
    operand = torch.ones(operand_shape, requires_grad=True)
    (operand.expand(shape) * status.expand(shape)).sum().backward()
    assert torch.equal(reduced_to(status, operand_shape).expand(operand_shape), operand.grad > 0)


@given(statuses(), st.integers(0, 2))
def test_aligned_broadcasts_as_before(case, extra):
    shape, status = case
    result = aligned(status, len(shape) + extra)
    assert result.ndim == len(shape) + extra
    assert torch.equal(result.expand([2] * extra + list(shape)), status.expand([2] * extra + list(shape)))


@given(statuses(), st.integers(0, 1000))
def test_what_is_known_keeps_its_values_and_forgets_the_others(case, seed):
    shape, mask = case
    value = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).double()
    fact = known(mask, value)
    if fact is None:
        assert not mask.any()
        return
    dense = mask.expand(shape)
    assert torch.equal(fact.mask.expand(shape), dense)
    assert torch.equal(fact.value.expand(shape), torch.where(dense, value, 0.0))
    assert torch.equal(fact.zero.expand(shape), dense & (value == 0))
    assert fact.mask.shape == fact.value.shape
