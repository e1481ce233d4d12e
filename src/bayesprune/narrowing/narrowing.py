"""``narrow``: the gated model without its pruned units, still with its gates."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesprune.attach.copying import copy_of
from bayesprune.attach.places import model_and_example
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.example_inputs import ExampleInputs, call, tensors_in
from bayesprune.gates import gates
from bayesprune.graph.surroundings import in_turn
from bayesprune.graph.tracing import relative_difference
from bayesprune.narrowing.shrinking import Shrinking
from bayesprune.prediction import evaluating
from bayesprune.state import as_before
from bayesprune.text_table import text_table


@dataclass(frozen=True, eq=False)
class Narrowing:
    """A gated model with fewer units. Prints as a table.

    Attributes:
        model: of the same class, with its gates; its tensors are its own.
        units: how many units each gate had.
        kept: which of them it still has, by number, in rising order.
        reasons: why gates keep units that they have pruned, where they do.
        max_rel_error: how far its outputs are from the gated model's on the example, in evaluation mode, as a share of their norm.
    """

    model: nn.Module
    units: dict[str, int]
    kept: dict[str, Tensor]
    reasons: dict[str, str]
    max_rel_error: float

    def __str__(self) -> str:
        rows = [("gate", "units", "left", "why some pruned ones could not go")]
        rows += [(name, str(count), str(len(self.kept[name])), self.reasons.get(name, "")) for name, count in self.units.items()]
        return f"{text_table(rows, '<>><')}\nlargest relative difference {self.max_rel_error:.1e}"


@in_turn()
def narrow(gated: nn.Module, example_inputs: ExampleInputs | None = None) -> Narrowing:
    """A copy of a gated model that lacks the units that its gates have pruned, and still has the gates.

    It costs less to train on, to make input-dependent and to sample from than the whole model, and it is compacted to the same network. In
    evaluation mode it computes what the whole model does. Its draws lack what pruned units let through in draws of the whole model: with
    ``bb``, ``dbb``, ``l0`` and ``gd`` next to nothing, with ``vib`` and ``sbp``, whose pruned units still pass noise, a part of the spread.

    Units go where whole channels of the layers that are there can go, and the layer knows their number by itself. ``compact``, which
    writes the network anew, removes more. A gate keeps at least two units, and its pruned ones where they are behind a batch norm, whose
    bias for them is trained; ``reasons`` says so. An optimiser holds the tensors of the whole model: make a new one. What the model's code
    does for other arguments than the example's, or in other methods, is not looked at: with layers that are narrower it may fail.

    Args:
        gated: a model with gates; it is not changed. While it is followed, no other thread should call it.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments; may be left out for the networks of
            the paper and for an ``nn.Sequential`` that begins with a linear layer.

    Raises:
        InputError: the model has no gates, does not run on the example, or computes no numbers for it.

    Example:
        >>> small = narrow(gated, example_inputs=x).model
        >>> predict(small, x, samples=32)
    """
    gated, inputs = model_and_example("narrow", gated, example_inputs)
    found = gates(gated)
    expected = _outputs(gated, inputs)
    shrinking = Shrinking([gated], inputs)
    alive = {name: gate.keep() for name, gate in found.items()}
    candidate = shrinking.candidate({name: kept[None] for name, kept in alive.items()})
    if candidate is None:
        model, kept = copy_of(gated), shrinking.kept[0]
    else:
        model, kept = candidate.narrow[0].model, candidate.kept[0]
    used = {name: int(kept.sum()) for name, kept in alive.items()}
    _warn_of_dead_gates(used)
    return Narrowing(
        model=model,
        units={name: gate.num_units for name, gate in found.items()},
        kept={name: kept[name] for name in found},
        reasons={name: shrinking.staying.get(name) or _why(len(kept[name])) for name in found if len(kept[name]) > used[name]},
        max_rel_error=max(relative_difference(new, old) for new, old in zip(_outputs(model, inputs), expected, strict=True)),
    )


def _why(left: int) -> str:
    """The reason where no gate is in the way."""
    return "a gate keeps two units at least" if left == 2 else "another gate on the same channels uses them"


def _warn_of_dead_gates(used: dict[str, int]) -> None:
    dead = [name for name, count in used.items() if count == 0]
    if dead:
        warnings.warn(
            f"all units of {', '.join(dead)} are pruned, so what comes behind does not depend on the inputs by this way: train again from "
            "the model as it was, with a smaller kl_scale or with warmup",
            BayespruneWarning,
            stacklevel=4,
        )


def _outputs(model: nn.Module, inputs: ExampleInputs) -> list[Tensor]:
    """What a model computes for the example in evaluation mode.

    Raises:
        InputError: it computes no tensors, or no numbers.
    """
    with torch.no_grad(), evaluating(model), as_before(model):
        outputs = tensors_in(call(model, inputs))
    if not outputs or any(bool(each.isnan().any()) for each in outputs):
        what = "what is no number (NaN)" if outputs else "no tensors"
        raise InputError(f"{type(model).__name__} computes {what} for example_inputs, with which nothing can be compared")
    return outputs
