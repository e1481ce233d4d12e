"""Labels that cross entropy cannot take, found before the first step and named."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.errors import InputError

_IGNORED = -100
"""What ``F.cross_entropy`` leaves out unless told otherwise."""


@dataclass(frozen=True)
class LabelRule:
    """What labels must be for the cross entropy of a network's scores.

    Attributes:
        scores: the shape of the network's outputs for some batch: samples, classes, and positions where each has a class.
        ignored: a label that stands for none.
    """

    scores: tuple[int, ...]
    ignored: int

    def check(self, labels: Tensor) -> None:
        """Refuse labels that are neither class numbers in range nor probabilities of the classes."""
        classes, dims = self.scores[1], len(self.scores)
        if labels.is_floating_point() and labels.ndim == dims and labels.shape[1] == classes:
            return
        if labels.dtype != torch.int64 and not (labels.dtype == torch.uint8 and dims == 2):  # Bytes for one class a sample alone.
            first = f", the first is {labels.flatten()[0].item()}" if labels.numel() else ""
            raise InputError(
                f"the labels are of type {labels.dtype}{first}, but cross entropy takes class numbers of type torch.int64: "
                "let the loader give labels.long(), or give fit another loss"
            )
        if labels.ndim != dims - 1:
            raise InputError(
                f"the labels have shape {tuple(labels.shape)}, but outputs of {dims} dimensions take labels of {dims - 1}, without "
                "the one of the classes: reshape them, or give fit another loss"
            )
        wrong = labels[((labels < 0) | (labels >= classes)) & (labels != self.ignored)]
        if wrong.numel():
            raise InputError(
                f"a label is {wrong[0].item()}, but the network has {classes} outputs, for the labels 0 to {classes - 1}: "
                "number the classes from 0, or give the network an output for each"
            )


def is_cross_entropy(loss: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether a loss is torch's cross entropy, with settings or without; a class derived from it may take whatever its author likes."""
    if isinstance(loss, partial):
        return loss.func is F.cross_entropy and not loss.args
    return loss is F.cross_entropy or type(loss) is nn.CrossEntropyLoss


def ignored_label(loss: Callable[[Tensor, Tensor], Tensor]) -> int | None:
    """The label that stands for none under torch's cross entropy; None under other losses."""
    if not is_cross_entropy(loss):
        return None
    if isinstance(loss, partial):
        return int(loss.keywords.get("ignore_index", _IGNORED))
    return loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss) else _IGNORED


def label_rule(loss: Callable[[Tensor, Tensor], Tensor], outputs: object) -> LabelRule | None:
    """The rule for labels under this loss; None where it is the user's own, or the outputs are no scores.

    Raises:
        InputError: cross entropy takes no such outputs at all.
    """
    ignored = ignored_label(loss)
    if ignored is None:
        return None
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the model returns {type(outputs).__name__}, but cross entropy takes one tensor of scores: give fit a loss that picks it, "
            "such as lambda outputs, labels: F.cross_entropy(outputs[0], labels)"
        )
    if outputs.ndim < 2:
        return None
    if outputs.shape[1] == 1:
        raise InputError(
            "the model has a single output, whose cross entropy is always zero: give fit the loss of your task, such as "
            "loss=F.mse_loss, or loss=F.binary_cross_entropy_with_logits for two classes, or the model an output for each class"
        )
    return LabelRule(tuple(outputs.shape), ignored)
