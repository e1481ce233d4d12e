"""Seconds as lines, and the way that they recommend, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesprune.adaptive.choice import Choice, Line
from bayesprune.adaptive.ways import GATHER

SECONDS = st.floats(0, 100)
LINES = st.builds(Line, SECONDS, SECONDS)
BOTH = {"gather": Line(2.0, 1.0), "fused": Line(1.0, 0.5)}


@pytest.mark.parametrize(
    ("points", "start", "slope"),
    [
        ([(0, 1), (1, 3), (2, 4)], 7 / 6, 1.5),
        ([(0, 1), (10, 6)], 1.0, 0.5),
        ([(0, 3), (1, 1)], 2.0, 0.0),  # Never falls.
        ([(1, 0), (2, 2)], 0.0, 2.0),  # Never begins below zero.
        ([(5, 1), (5, 3)], 2.0, 0.0),
        ([(7, 4)], 4.0, 0.0),
    ],
)
def test_line_through_points(points, start, slope):
    line = Line.through(points)
    assert (line.start, line.slope) == pytest.approx((start, slope))
    assert line.at(4) == pytest.approx(start + 4 * slope)


@given(start=SECONDS, slope=SECONDS, units=st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True))
def test_points_on_a_line_give_it_back(start, slope, units):
    line = Line.through([(count, start + slope * count) for count in units])
    assert (line.start, line.slope) == pytest.approx((start, slope), rel=1e-6, abs=1e-6 * (1 + slope * max(units)))


@given(points=st.lists(st.tuples(st.integers(0, 100), SECONDS), min_size=1, max_size=8))
def test_no_line_promises_less_than_nothing(points):
    line = Line.through(points)
    assert line.start >= 0
    assert line.slope >= 0


@pytest.mark.parametrize(
    ("ways", "union", "total", "way", "expected"),
    [
        (BOTH, 3, 3, "fused", 1 + 2.5),  # 2.5 against 5 and 10.
        (BOTH, 3, 12, "gather", 1 + 5),  # 5 against 7 and 10.
        (BOTH, 8, 10, "fused", 1 + 6),  # 6 against 10 and 10.
        (BOTH, 8, 18, None, 1 + 10),  # All take 10.
        (BOTH, 0, 0, "fused", 1 + 1),
        ({"gather": Line(2.0, 1.0)}, 7, 7, "gather", 1 + 9),
        ({"gather": Line(2.0, 1.0)}, 8, 8, None, 1 + 10),
        ({"fused": Line(1.0, 0.5)}, 1, 17, "fused", 1 + 9.5),
        ({"gather": Line(2.0, 1.0), "product": Line(0.0, 2.0)}, 1, 1, "product", 1 + 2),  # 2 against 3.
        ({"gather": Line(2.0, 1.0), "product": Line(0.0, 2.0)}, 3, 9, "gather", 1 + 5),  # 5 against 6, whatever inputs need added up.
        ({}, 0, 0, None, 1 + 10),
    ],
)
def test_fastest_way_and_its_time(ways, union, total, way, expected):
    choice = Choice(4, full=10.0, look=1.0, ways=ways)
    assert choice.way_for(union, total) == way
    assert choice.expected(union, total) == pytest.approx(expected)


def test_for_one_input_the_units_of_all_are_its_own():
    choice = Choice(1, full=10.0, look=1.0, ways=BOTH)
    assert [choice.way_for(units) for units in (0, 17, 18)] == ["fused", "fused", None]


def test_a_whole_product_leaves_nothing_out():
    choice = Choice(1, full=10.0, look=1.0, ways={"gather": Line(2.0, 1.0), "whole product": Line(4.0, 0.0)})
    assert [choice.way_for(units) for units in (1, 3, 100)] == ["gather", "whole product", "whole product"]
    assert [choice.leaves_out(units) for units in (1, 3, 100)] == [True, False, False]
    assert not Choice(1, full=1.0, look=0.0, ways={"gather": Line(2.0, 1.0)}).leaves_out(0)
    assert not Choice(4, 10.0, 0.0, {"whole product": Line(0.0, 0.0)}).groups_could_pay(0)


@pytest.mark.parametrize(("whole", "pays"), [(4.9, False), (5.1, True), (20.0, True)])
def test_groups_must_beat_a_whole_product_too(whole, pays):
    choice = Choice(4, full=10.0, look=0.0, ways={"gather": Line(2.0, 1.0), "whole product": Line(whole, 0.0)})
    assert choice.groups_pay([(2, 1), (2, 1)]) is pays  # 2 + 1/2 twice.
    assert choice.groups_could_pay(4) is pays  # 2 * 2 + 4/4
    assert choice.most_groups == min(whole, 10.0) / 2


@given(full=SECONDS, look=SECONDS, gather=LINES, fused=LINES, union=st.integers(0, 50), more=st.integers(0, 500))
def test_no_way_is_faster_than_the_chosen_one(full, look, gather, fused, union, more):
    choice = Choice(8, full, look, {"gather": gather, "fused": fused})
    times = {None: full, "gather": gather.at(union), "fused": fused.at(union + more)}
    assert times[choice.way_for(union, union + more)] == min(times.values())
    assert choice.expected(union, union + more) == look + min(times.values())


@pytest.mark.parametrize(
    ("full", "groups", "pays"),
    [
        (10.0, [(2, 4), (2, 2)], True),  # 2 + 4/2 and 2 + 2/2: 7 seconds.
        (7.0, [(2, 4), (2, 2)], False),
        (7.1, [(2, 4), (2, 2)], True),
        (10.0, [(1, 8), (1, 8), (2, 8)], False),  # 4, 4 and 6: 14 seconds.
        (3.0, [(4, 0)], True),
    ],
)
def test_groups_pay_if_all_of_them_take_less_than_the_whole(full, groups, pays):
    assert Choice(4, full, 0.0, {"gather": Line(2.0, 1.0)}).groups_pay(groups) is pays


def test_every_group_takes_its_fastest_way():
    choice = Choice(4, 8.0, 0.0, {"gather": Line(2.0, 1.0), "product": Line(1.0, 2.0), "fused": Line(0.0, 0.0)})
    assert choice.way_of_group(2, 1) == (2.0, "product")  # 1 + 2/2 against 2 + 1/2.
    assert choice.way_of_group(2, 8) == (6.0, "gather")  # 2 + 8/2 against 1 + 16/2.
    assert choice.most_groups == 8.0
    assert choice.groups_could_pay(11)  # 2 * 1 + 2 * 11 / 4 < 8
    assert choice.groups_could_pay(15)  # 2 * 2 + 15 / 4 < 8
    assert not choice.groups_could_pay(16)
    assert choice.groups_pay([(2, 1), (2, 7)])  # 2 + 5.5
    assert not choice.groups_pay([(2, 1), (2, 8)])


def test_groups_are_not_fused():
    assert Choice(4, 1e9, 0.0, {"fused": Line(0.0, 0.0)}).most_groups == 0.0
    assert not Choice(4, 1e9, 0.0, {"fused": Line(0.0, 0.0)}).groups_pay([(2, 1), (2, 1)])


def test_groups_are_looked_for_where_two_could_pay():
    choice = Choice(4, full=10.0, look=0.0, ways={GATHER: Line(2.0, 1.0)})
    assert choice.groups_could_pay(23)  # 2 * 2 + 23 / 4 < 10
    assert not choice.groups_could_pay(24)
    assert not Choice(4, full=10.0, look=0.0).groups_could_pay(0)
