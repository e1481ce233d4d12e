"""``uncertainty``: what draws of the masks say about a prediction beside its mean."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from bayesprune.calibration import are_probabilities
from bayesprune.errors import InputError
from bayesprune.prediction import predictions, softmax
from bayesprune.text_table import text_table


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Predictions for a batch over draws of the masks. Prints as a table.

    For classes, the entropy of the mean prediction has two parts (Depeweg et al., 2018): what every draw is unsure of by itself, such as
    an ambiguous image, and what the draws disagree about, which is uncertainty about the units.

    Attributes:
        mean: the mean prediction, as ``predict`` gives it, in single precision at least.
        std: the standard deviation between draws, element by element.
        samples: how many draws.
        expected_entropy: the mean entropy of a draw's prediction, in nats, for each input; None where predictions are no probabilities.
    """

    mean: Tensor
    std: Tensor
    samples: int
    expected_entropy: Tensor | None

    @property
    def entropy(self) -> Tensor:
        """H[E p], in nats: of the mean prediction, for each input."""
        self._require_classes()
        entropy: Tensor = torch.special.entr(self.mean).sum(dim=-1)
        return entropy

    @property
    def mutual_information(self) -> Tensor:
        """H[E p] - E H[p], in nats: how much the draws disagree, for each input. Zero if they all say the same, however unsure."""
        return (self.entropy - self._require_classes()).clamp(min=0.0)

    @property
    def confidence(self) -> Tensor:
        """The mean probability of the class that is predicted, for each input."""
        self._require_classes()
        return self.mean.amax(dim=-1)

    def __str__(self) -> str:
        head = f"{self.samples} draws for {len(self.mean) if self.mean.ndim else 1} inputs"
        rows = [("", "mean", "least", "most"), ("spread between draws", *_range(self.std))]
        if self.expected_entropy is not None:
            rows += [("confidence", *_range(self.confidence)), ("entropy, nats", *_range(self.entropy))]
            rows.append(("mutual information, nats", *_range(self.mutual_information)))
        return f"{head}\n{text_table(rows, '<>>>')}"

    def _require_classes(self) -> Tensor:
        if self.expected_entropy is None:
            raise InputError(
                "these predictions are no probabilities of classes in the last dimension, so they have no entropy and no confidence; use "
                "mean and std, or give uncertainty an activation that makes such probabilities"
            )
        return self.expected_entropy


def _range(values: Tensor) -> tuple[str, str, str]:
    """Mean, least and most, as text."""
    if values.numel() == 0:
        return "", "", ""
    return f"{float(values.mean()):.4f}", f"{float(values.min()):.4f}", f"{float(values.max()):.4f}"


def uncertainty(model: nn.Module, x: Tensor, *, samples: int = 32, activation: Callable[[Tensor], Tensor] | None = softmax) -> Uncertainty:
    """What so many draws of the masks predict for a batch: mean, spread, and for classes where the uncertainty comes from.

    The model is in evaluation mode meanwhile, as in ``predict``. A draw costs less on the model that ``narrow`` leaves; that of ``compact``
    has no masks to draw.

    Args:
        model: a model with gates.
        x: a batch of inputs.
        samples: how many masks to draw, at least 2.
        activation: applied to the outputs of each draw: the softmax over the last dimension by default; None for none, as in regression.
            Where classes lie in another dimension, one that moves it: ``lambda scores: scores.movedim(1, -1).softmax(-1)``.

    Raises:
        InputError: as ``predict``, or fewer than two samples are asked for.

    Example:
        >>> found = uncertainty(gated, x)
        >>> unsure = found.mutual_information > 0.1
    """
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 2:
        raise InputError(f"samples is a number of masks to draw, at least 2 to see how they differ, not {samples!r}")
    mean, squares, entropies = torch.zeros(()), torch.zeros(()), torch.zeros(())
    are_classes = True
    drawn = predictions(model, x, samples=samples, activation=activation, asked_by="uncertainty")
    for count, each in enumerate(drawn, start=1):
        if each.is_complex():
            raise InputError("these predictions are complex numbers: give uncertainty an activation that makes real ones of them")
        prediction = each.to(torch.promote_types(each.dtype, torch.float32))
        before = prediction - mean.to(prediction)  # Welford's way: the difference of two large sums would have no digits left.
        mean = mean.to(prediction) + before / count
        squares = squares.to(prediction) + before * (prediction - mean)
        are_classes = are_classes and _are_of_classes(prediction)
        if are_classes:
            entropies = entropies.to(prediction) + torch.special.entr(prediction).sum(dim=-1)
    std = (squares / (samples - 1)).clamp(min=0.0).sqrt()
    return Uncertainty(mean, std, int(samples), entropies / samples if are_classes else None)


def _are_of_classes(prediction: Tensor) -> bool:
    return prediction.ndim > 1 and prediction.shape[-1] > 1 and are_probabilities(prediction)
