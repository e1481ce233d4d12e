import pytest

from bayesprune.experiments.published import PublishedRow
from bayesprune.experiments.rows import Outcome
from bayesprune.report.comparison.points import Point
from bayesprune.report.comparison.verdicts import Standing, error_standing, judge, memory_standing, speedup_standing

BETTER, EQUAL, WORSE = Standing.BETTER, Standing.EQUAL, Standing.WORSE


def point(error, speedup=10.0, memory=8.0, method="bb", tradeoff="1"):
    return Point(method, tradeoff, (Outcome((5.0,), speedup, memory, error),), 0, error, 0.0, speedup, memory, (5,))


PAPER = PublishedRow("appendix", "lenet-500-300", "mnist", "bb", "1", 1.50, 0.05, None, 10.0, 8.0)


@pytest.mark.parametrize(
    ("ours", "papers", "expected"),
    [
        (1.65, 1.50, EQUAL), (1.66, 1.50, WORSE), (1.35, 1.50, EQUAL), (1.34, 1.50, BETTER), (1.75, 1.60, EQUAL), (0.85, 0.70, EQUAL),
        (1.654, 1.50, EQUAL), (1.656, 1.50, WORSE),
    ],
)  # fmt: skip
def test_errors_within_0_15_points_are_equal(ours, papers, expected):
    assert error_standing(ours, papers) is expected


@pytest.mark.parametrize(
    ("ours", "papers", "expected"),
    [(9.0, 10.0, EQUAL), (8.99, 10.0, WORSE), (11.0, 10.0, EQUAL), (11.01, 10.0, BETTER), (0.99, 1.1, EQUAL), (33.63, 33.63, EQUAL)],
)
def test_speedups_within_a_tenth_are_equal(ours, papers, expected):
    assert speedup_standing(ours, papers) is expected


@pytest.mark.parametrize(
    ("ours", "papers", "expected"), [(8.8, 8.0, EQUAL), (8.81, 8.0, WORSE), (7.2, 8.0, EQUAL), (7.19, 8.0, BETTER), (0.0, 8.0, BETTER)]
)
def test_memories_within_a_tenth_are_equal(ours, papers, expected):
    assert memory_standing(ours, papers) is expected


def test_row_is_reached_if_nothing_is_worse():
    own = point(1.65, 9.0, 8.8)
    verdict = judge(PAPER, own, [own])
    assert (verdict.error, verdict.speedup, verdict.memory) == (EQUAL, EQUAL, EQUAL)
    assert verdict.nowhere_worse
    assert verdict.reached
    assert verdict.as_good is None


@pytest.mark.parametrize("own", [point(1.66), point(1.50, 8.9), point(1.52, 10.0, 8.9)])
def test_row_is_not_reached_if_one_figure_is_worse(own):
    assert not judge(PAPER, own, [own]).reached


def test_low_error_does_not_make_up_for_a_slow_network():
    own = point(0.5, 5.0)
    assert not judge(PAPER, own, [own]).reached


def test_row_is_reached_by_another_tradeoff_that_is_at_least_as_good():
    own, other = point(1.70), point(1.50, 10.0, tradeoff="2")
    verdict = judge(PAPER, own, [own, other])
    assert not verdict.nowhere_worse
    assert verdict.reached
    assert verdict.as_good == other


@pytest.mark.parametrize("other", [point(1.51, 10.0, tradeoff="2"), point(1.50, 9.98, tradeoff="2"), point(1.0, 50.0, method="dbb")])
def test_another_point_has_no_tolerance_and_is_of_the_same_method(other):
    own = point(1.70)
    assert not judge(PAPER, own, [own, other]).reached


def test_the_best_of_the_others_is_named():
    own, good, best = point(1.70), point(1.45, 20.0, tradeoff="2"), point(1.40, 11.0, tradeoff="4")
    assert judge(PAPER, own, [own, good, best]).as_good == best


def test_point_itself_may_be_as_good_in_all_but_memory():
    own, other = point(1.50, 10.0, 9.0), point(1.40, 11.0, tradeoff="4")
    verdict = judge(PAPER, own, [own, other])
    assert verdict.memory is WORSE
    assert verdict.as_good == own


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (point(1.62, 9.5, 8.5, tradeoff="3"), True),
        (point(1.66, 9.5, 8.5, tradeoff="3"), False),
        (point(1.62, 8.9, 8.5, tradeoff="3"), False),
        (point(1.62, 9.5, 8.9, tradeoff="3"), False),
        (point(1.62, 9.5, 8.5, "vib", "3"), False),
    ],
)
def test_row_that_is_not_reached_names_a_tradeoff_that_is_nowhere_worse(other, named):
    own = point(1.70)
    verdict = judge(PAPER, own, [own, other])
    assert not verdict.reached
    assert verdict.nowhere_worse_at == (other if named else None)


def test_row_that_is_reached_names_none():
    own = point(1.55)
    assert judge(PAPER, own, [own, point(1.62, 9.5, 8.5, tradeoff="3")]).nowhere_worse_at is None
