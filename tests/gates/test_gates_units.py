import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.errors import InputError
from bayesprune.gates.units import Units


def test_channels():
    assert Units(4).channels == 4
    assert Units(2, groups=torch.tensor([0, 1, 1])).channels == 3
    assert Units(2, groups=torch.tensor([[0, 1, 1]])).channels is None


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_mean_is_global_average_pooling(shape):
    x = torch.randn(shape)
    expected = x.reshape(2, 3, -1).mean(2)
    torch.testing.assert_close(Units(3).mean(x), expected)
    torch.testing.assert_close(Units(3, channel_dim=-1).mean(x.movedim(1, -1)), expected)


@settings(deadline=None)
@given(data=st.data(), ndim=st.integers(2, 5), count=st.integers(1, 4))
def test_mean_with_groups_equals_a_loop(data, ndim, count):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=ndim - 1, max_size=ndim - 1))
    shape = [data.draw(st.sampled_from([1, size])) for size in sizes]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    x = torch.randn(2, *sizes, generator=generator)
    groups = torch.randint(0, count, shape, generator=generator)
    units = Units(count, groups=groups) if groups.ndim > 1 else Units(count, groups=groups.expand(sizes).clone())
    units.check(x)
    owners = groups.expand(sizes)
    for sample, found in zip(x, units.mean(x), strict=True):
        for unit in range(count):
            members = sample[owners == unit]
            expected = members.mean() if len(members) else torch.zeros(())
            torch.testing.assert_close(found[unit], expected)


def test_spread_and_mean_are_inverse():
    groups = torch.tensor([[0, 1, 1], [2, 0, 2]])
    units, mask, x = Units(3, groups=groups), torch.randn(4, 3), torch.zeros(4, 2, 3)
    torch.testing.assert_close(units.mean(units.spread(mask, x)), mask)


def test_total_sums_channels_into_units():
    values = torch.tensor([1.0, 2.0, 4.0])
    assert torch.equal(Units(3).total(values), values)
    assert Units(2, groups=torch.tensor([1, 0, 1])).total(values).tolist() == [2.0, 5.0]


def test_a_unit_without_members_is_harmless():
    units, x = Units(3, groups=torch.tensor([0, 2])), torch.ones(2, 2)
    assert units.mean(x).tolist() == [[1.0, 0.0, 1.0]] * 2
    assert units.spread(torch.tensor([5.0, 6.0, 7.0]), x).tolist() == [5.0, 7.0]


def test_lists_are_taken_as_groups():
    assert Units(2, groups=[0, 1, 1]).channels == 3


def test_no_units_with_groups_must_cover_nothing():
    assert Units(0, groups=torch.zeros(0)).channels == 0
    with pytest.raises(InputError):
        Units(0, groups=torch.tensor([0]))
