"""``calibration``: how far a classifier's probabilities can be believed, measured on labelled data; and a temperature that mends them."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesprune.errors import InputError, is_number
from bayesprune.text_table import text_table

_SUMS_TO_ONE = 1e-2
"""How far the sum of probabilities may be from one: bfloat16 has three digits."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_BINS = 10_000
_LOWEST = 1e-12
"""Probabilities of true classes below it count as this: a single zero would make the likelihood infinite."""
_RANGE, _HALVINGS = 100.0, 60
"""A temperature is at most so many times the spread of the scores, and at least this part of it."""


@dataclass(frozen=True)
class Bin:
    """Predictions of about one confidence: how many, how confident they are on average, and what share of them is right."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """How far probabilities can be believed. Prints as a table.

    Attributes:
        error: percentage of predictions that are wrong.
        nll: mean negative log-likelihood of the labels, in nats; a probability counts as 1e-12 at least.
        brier: mean squared distance of the probabilities from the labels (Brier, 1950); at most 2.
        calibration_error: the expected calibration error (Naeini et al., 2015), in percentage points: how far confidence and accuracy are
            apart in bins of equal width, on average over predictions.
        bins: those in which there are predictions, in rising confidence.
        wrong: whether each prediction is wrong, those with most confidence first.
    """

    error: float
    nll: float
    brier: float
    calibration_error: float
    bins: tuple[Bin, ...]
    wrong: Tensor

    def error_at(self, coverage: float) -> float:
        """The percentage of wrong predictions among the most confident ones, of which this share (above 0, at most 1) is answered."""
        if not (is_number(coverage) and 0 < coverage <= 1):
            raise InputError(f"coverage is the share of predictions to answer, above 0 and at most 1, not {coverage!r}")
        return 100.0 * float(self.wrong[: max(1, round(float(coverage) * len(self.wrong)))].double().mean())

    def __str__(self) -> str:
        rows = [("confidence %", "accuracy %", "predictions")]
        rows += [(f"{100 * each.confidence:.1f}", f"{100 * each.accuracy:.1f}", str(each.count)) for each in self.bins]
        head = (
            f"error {self.error:.2f} %, negative log-likelihood {self.nll:.4f}, Brier score {self.brier:.4f}, "
            f"expected calibration error {self.calibration_error:.2f} points"
        )
        return f"{head}\n{text_table(rows, '>>>')}"


def calibration(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> Calibration:
    """How far the probabilities of a classifier can be believed.

    Args:
        probabilities: of each class for each input, of shape (inputs, classes): what ``predict`` gives, or ``Uncertainty.mean``.
        labels: the class of each input, as numbers.
        bins: into how many of equal width confidences are sorted, at most 10,000.

    Raises:
        InputError: the shapes do not fit, rows do not sum to one, or labels are no classes.

    Example:
        >>> print(calibration(predict(gated, inputs, samples=32), labels))
    """
    if not isinstance(bins, Integral) or isinstance(bins, bool) or not 1 <= bins <= _MOST_BINS:
        raise InputError(f"bins is a whole number from 1 to {_MOST_BINS:,}, not {bins!r}")
    _check(probabilities, labels, "probabilities")
    rows = probabilities.detach().double()
    if not are_probabilities(rows):
        raise InputError("the probabilities of an input sum to one and are not negative: for scores take torch.softmax(scores, dim=1)")
    labels = labels.to(rows.device).long()
    confidence, predicted = rows.max(dim=1)
    right = predicted == labels
    of_label = rows.gather(1, labels[:, None]).squeeze(1)
    number = (confidence * bins).ceil().long().clamp(1, int(bins)) - 1
    found = [_bin(confidence[number == each], right[number == each]) for each in number.unique().tolist()]
    return Calibration(
        error=100.0 * float((~right).double().mean()),
        nll=float(-of_label.clamp(min=_LOWEST).log().mean()),
        brier=float((rows - F.one_hot(labels, rows.shape[1])).square().sum(dim=1).mean()),
        calibration_error=100.0 * math.fsum(each.count * abs(each.accuracy - each.confidence) for each in found) / len(rows),
        bins=tuple(found),
        wrong=(~right)[confidence.argsort(descending=True, stable=True)],
    )


def are_probabilities(rows: Tensor) -> bool:
    """Whether the last dimension has probabilities of classes that exclude each other."""
    return bool((rows >= 0).all()) and bool(((rows.sum(dim=-1) - 1.0).abs() <= _SUMS_TO_ONE).all())


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature by which to divide a classifier's scores so that labels become most likely (Guo et al., 2017).

    Above 1 it makes predictions less confident. The class that is predicted stays the same. Take labelled data that the model was not
    trained on. Where the likelihood has no best temperature, because all predictions are right, or more are wrong than by chance, it is the
    end of a range: from a hundredth of the scores' spread to a hundred times it. Scores that do not differ get 1.

    Args:
        scores: before the softmax, of shape (inputs, classes).
        labels: the class of each input, as numbers.

    Raises:
        InputError: the shapes do not fit, scores are not finite, or labels are no classes.
    """
    _check(scores, labels, "scores")
    rows, labels = scores.detach().double(), labels.to(scores.device).long()
    if rows.shape[1] > 1 and are_probabilities(rows):
        raise InputError("these are probabilities, and a temperature divides scores: take those of predict(..., activation=None)")
    of_label = rows.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        """Of the negative log-likelihood in the inverse temperature: it rises, because the likelihood is concave there."""
        expected = (torch.softmax(inverse * rows, dim=1) * rows).sum(dim=1)
        return float((expected - of_label).mean())

    spread = float(rows.std(dim=1, correction=0).mean())
    if spread == 0.0:
        return 1.0
    low, high = 1.0 / (_RANGE * spread), _RANGE / spread
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1.0 / math.sqrt(low * high)


def _bin(confidence: Tensor, right: Tensor) -> Bin:
    return Bin(len(right), float(confidence.mean()), float(right.double().mean()))


def _check(rows: Any, labels: Any, what: str) -> None:
    """Refuse what is no table of numbers with a class for each row."""
    dense = isinstance(rows, Tensor) and rows.layout == torch.strided and not rows.is_meta
    if not (dense and rows.ndim == 2 and rows.dtype in _FLOATS and rows.numel() > 0):
        given = f"a tensor of shape {tuple(rows.shape)} and type {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise InputError(f"{what} are a floating-point tensor of shape (inputs, classes), not {given}")
    if not bool(rows.isfinite().all()):
        raise InputError(f"some {what} are not finite")
    if not isinstance(labels, Tensor) or labels.dtype not in _WHOLE or labels.shape != rows.shape[:1]:
        given = f"a tensor of shape {tuple(labels.shape)} and type {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels are one class number for each of the {len(rows)} inputs, as a tensor of whole numbers, not {given}")
    if bool(((labels < 0) | (labels >= rows.shape[1])).any()):
        raise InputError(f"labels are from 0 to {rows.shape[1] - 1}, as there are {rows.shape[1]} classes; some are not")
