"""Calibration against figures worked out by hand, and where the truth is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bayesprune as bp
from bayesprune.errors import InputError


def test_by_hand():
    probabilities = torch.tensor([[0.95, 0.05], [0.85, 0.15], [0.28, 0.72], [0.46, 0.54]])
    found = bp.calibration(probabilities, torch.tensor([0, 1, 1, 1]), bins=10)
    assert found.error == pytest.approx(25.0)
    assert found.nll == pytest.approx(-(math.log(0.95) + math.log(0.15) + math.log(0.72) + math.log(0.54)) / 4)
    assert found.brier == pytest.approx(2 * (0.05**2 + 0.85**2 + 0.28**2 + 0.46**2) / 4, rel=1e-5)
    assert [each.count for each in found.bins] == [1, 1, 1, 1]
    assert found.calibration_error == pytest.approx(100 * (0.05 + 0.85 + 0.28 + 0.46) / 4, rel=1e-5)
    assert found.wrong.tolist() == [False, True, False, False]
    assert found.error_at(0.25) == 0.0
    assert found.error_at(0.5) == pytest.approx(50.0)
    assert found.error_at(1.0) == pytest.approx(25.0)


def test_probabilities_that_are_right_are_calibrated():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(2.0 * torch.randn(200_000, 5, generator=generator), dim=1)
    labels = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
    found = bp.calibration(probabilities, labels)
    assert found.calibration_error < 0.4
    assert found.nll == pytest.approx(float(torch.special.entr(probabilities).sum(1).mean()), abs=0.01)
    colder = bp.calibration(torch.softmax(probabilities.log() * 3.0, dim=1), labels)
    assert colder.error == found.error
    assert colder.calibration_error > 10.0
    assert colder.nll > found.nll
    assert colder.brier > found.brier


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_the_temperature_that_scores_were_multiplied_with_is_found(factor):
    generator = torch.Generator().manual_seed(0)
    scores = 2.0 * torch.randn(100_000, 4, generator=generator)
    labels = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=generator).squeeze(1)
    temperature = bp.fit_temperature(factor * scores, labels)
    assert temperature == pytest.approx(factor, rel=0.02)
    mended = bp.calibration(torch.softmax(factor * scores / temperature, dim=1), labels)
    assert mended.nll <= bp.calibration(torch.softmax(factor * scores, dim=1), labels).nll + 1e-9


def test_a_temperature_is_best_among_its_neighbours():
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 6, (500,), generator=generator)
    scores = 5.0 * torch.randn(500, 6, generator=generator) + 3.0 * torch.nn.functional.one_hot(labels, 6)
    best = bp.fit_temperature(scores, labels)

    def nll(temperature):
        return bp.calibration(torch.softmax(scores.double() / temperature, dim=1), labels).nll

    assert nll(best) <= min(nll(0.99 * best), nll(1.01 * best))


@pytest.mark.parametrize(("labels", "expected"), [([0, 1], 0.01), ([1, 0], 100.0)])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_scores_that_are_always_right_or_always_wrong_have_the_end_of_a_range(labels, expected, spread):
    scores = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) * spread
    assert bp.fit_temperature(scores, torch.tensor(labels)) == pytest.approx(expected * spread, rel=1e-3)


def test_scores_that_do_not_differ_have_none():
    assert bp.fit_temperature(torch.full((3, 4), 2.0), torch.tensor([0, 1, 2])) == 1.0
    assert bp.fit_temperature(torch.randn(3, 1), torch.tensor([0, 0, 0])) == 1.0


def test_probabilities_are_no_scores():
    with pytest.raises(InputError, match="these are probabilities"):
        bp.fit_temperature(torch.softmax(torch.randn(3, 4), dim=1), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_temperature_has_the_unit_of_the_scores(scale):
    generator = torch.Generator().manual_seed(0)
    scores = 2.0 * torch.randn(20_000, 4, generator=generator)
    labels = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=generator).squeeze(1)
    assert bp.fit_temperature(scale * scores, labels) == pytest.approx(scale, rel=0.05)


def test_certain_and_wrong_is_finite():
    found = bp.calibration(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert math.isfinite(found.nll)
    assert found.brier == pytest.approx(2.0)
    assert found.calibration_error == pytest.approx(100.0)


@given(st.integers(1, 40), st.integers(2, 7), st.integers(1, 30), st.integers(0, 1000))
def test_whatever_the_predictions(count, classes, bins, seed):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.softmax(4.0 * torch.randn(count, classes, generator=generator), dim=1)
    found = bp.calibration(probabilities, torch.randint(0, classes, (count,), generator=generator), bins=bins)
    assert sum(each.count for each in found.bins) == count
    assert len(found.bins) <= bins
    assert 0.0 <= found.calibration_error <= 100.0
    assert 0.0 <= found.brier <= 2.0
    assert found.error_at(1.0) == pytest.approx(found.error)
    mean = sum(each.count * each.accuracy for each in found.bins) / count
    assert 100.0 * (1.0 - mean) == pytest.approx(found.error)
    assert [each.confidence for each in found.bins] == sorted(each.confidence for each in found.bins)


def test_it_prints():
    text = str(bp.calibration(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])))
    assert "error 50.00 %" in text
    assert "confidence %" in text


@pytest.mark.parametrize(
    ("probabilities", "labels", "why"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.long), "shape"),
        (torch.ones(0, 3), torch.zeros(0, dtype=torch.long), "shape"),
        ([[1.0, 0.0]], torch.tensor([0]), "list"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "sum to one"),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([0]), "sum to one"),
        (torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]), "finite"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "from 0 to 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-100]), "from 0 to 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), "whole numbers"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), "each of the 1 inputs"),
        (torch.tensor([[0.5, 0.5]]), [0], "list"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0], dtype=torch.uint16), "whole numbers"),
        (torch.tensor([[0.5, 0.5]]).to_sparse(), torch.tensor([0]), "shape"),
        (torch.empty(1, 2, device="meta"), torch.tensor([0]), "shape"),
    ],
)
def test_refusals(probabilities, labels, why):
    with pytest.raises(InputError, match=why):
        bp.calibration(probabilities, labels)


@pytest.mark.parametrize("bins", [0, -1, 1.5, True, 10**30])
def test_bins_are_a_number(bins):
    with pytest.raises(InputError, match="bins"):
        bp.calibration(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), bins=bins)


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.1, float("nan"), "half"])
def test_coverage_is_a_share(coverage):
    found = bp.calibration(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(InputError, match="coverage"):
        found.error_at(coverage)
