"""Evidence that removal changed nothing."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from bayesprune.cost import Cost
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, arguments, call, tensors_in
from bayesprune.graph.recording import positional
from bayesprune.graph.tracing import relative_difference
from bayesprune.graph.transformers import attention_written_out
from bayesprune.prediction import evaluating
from bayesprune.state import as_before

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""Beyond this relative difference something else than rounding is at work."""


@dataclass(frozen=True)
class GateOutcome:
    """What became of one gate.

    Attributes:
        units: how many units it had.
        kept: how many of them it kept.
        stayed: how many pruned units still exist, because something needs them.
        reason: what needs them.
    """

    units: int
    kept: int
    stayed: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Certificate:
    """How far the compacted network is from the gated one, and what was removed. Prints as a table.

    Attributes:
        max_abs_error: the largest absolute difference of an output.
        max_rel_error: the largest relative difference of an output, as the norm of the difference over the norm of the output.
        dtype: in which both were computed.
        inputs: how many batches they were compared on: the example, random ones like it, and some of other sizes if the model takes them.
        gates: what became of each gate.
        masks_left: gates whose factors could not be moved into weights and are still multiplied.
        before: the cost of the gated network, gates not counted.
        after: the cost of the compacted one.
        tracer: which tracer followed the model.
        note: remarks on anything out of the ordinary; empty if there is none.
        not_updated: the buffers that the gated network writes in evaluation mode, and the compacted one does not: where it reads them, it
            reads what they held when it was made.
    """

    max_abs_error: float
    max_rel_error: float
    dtype: str
    inputs: int
    gates: dict[str, GateOutcome]
    masks_left: tuple[str, ...]
    before: Cost
    after: Cost
    tracer: str
    note: str = ""
    not_updated: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The certificate in plain JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    def __str__(self) -> str:
        width = max(len("gate"), *(len(name) for name in self.gates))
        lines = [f"{'gate'.ljust(width)}  {'kept':>6} of units"]
        for name, gate in self.gates.items():
            extra = f"   {gate.stayed} pruned stay: {gate.reason}" if gate.stayed else ""
            lines.append(f"{name.ljust(width)}  {gate.kept:>6} of {gate.units:<6}{extra}".rstrip())
        lines += [f"{name}: its mask is still multiplied" for name in self.masks_left]
        lines.append(
            f"largest difference {self.max_abs_error:.1e}, relative {self.max_rel_error:.1e}, over {self.inputs} batches in {self.dtype}"
        )
        lines.append(str(self.after.relative_to(self.before)))
        lines += [f"{name}: no longer updated, its value is that of the time of compaction" for name in self.not_updated]
        return "\n".join([*lines, self.note] if self.note else lines)


class Difference(NamedTuple):
    """How far a network is from another: an output's largest difference, absolute and relative, and over how many batches that is."""

    largest: float
    relative: float
    batches: int


def compare(
    gated: nn.Module, compacted: fx.GraphModule, example_inputs: ExampleInputs, others: Sequence[ExampleInputs] = (), batches: int = 2
) -> Difference:
    """How far the compacted network is from the gated one, on what that takes; infinitely where it does not run.

    Args:
        gated: the network before.
        compacted: the network after.
        example_inputs: what to compare them on, with random inputs like these.
        others: further inputs, such as those of other sizes.
        batches: how many batches of random inputs.
    """
    largest, relative, count = 0.0, 0.0, 0
    with torch.no_grad(), evaluating(gated), evaluating(compacted), attention_written_out():
        for alternatives in ([example_inputs], *_inputs_like(example_inputs, batches), *([each] for each in others)):
            taken = _first_taken(gated, alternatives)
            if taken is None:
                continue
            inputs, expected = taken
            count += 1
            try:
                got = tensors_in(call(compacted, tensor_arguments(compacted, inputs)))
            except Exception:  # noqa: BLE001  Whatever a network raises that does not take what the one before took.
                return Difference(math.inf, math.inf, count)
            for a, b in zip(got, expected, strict=True):
                difference = relative_difference(a, b)
                relative = max(relative, difference)
                if difference > 0 and a.shape == b.shape:
                    wide = torch.complex128 if b.is_complex() else torch.float64
                    largest = max(largest, float((a.to(wide) - b.to(wide)).abs().nan_to_num(torch.inf).max()))
    return Difference(largest, relative, count)


def _first_taken(gated: nn.Module, alternatives: Iterable[ExampleInputs]) -> tuple[ExampleInputs, list[Tensor]] | None:
    """The first of these inputs that the gated network takes, and what it computes from them; None if it takes none."""
    for inputs in alternatives:
        with suppress(InputError), as_before(gated):  # Each is a first call: what it writes, the compacted network does not.
            return inputs, [tensor.clone() for tensor in tensors_in(call(gated, inputs))]
    return None


def tensor_arguments(compacted: fx.GraphModule, example_inputs: ExampleInputs) -> tuple[Any, ...]:
    """The arguments that a compacted network takes: those that are no tensors have become part of it."""
    return positional(compacted, *arguments(example_inputs))


def _inputs_like(example_inputs: ExampleInputs, batches: int) -> Iterator[list[ExampleInputs]]:
    """Batches of random inputs: all drawn, or with whole numbers as they are, since these may have an order that drawn ones lack."""
    generator = torch.Generator().manual_seed(0)

    def like(leaf: Any, whole_numbers: bool) -> Any:
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            return leaf
        if leaf.is_floating_point() or leaf.is_complex():
            wide = torch.complex128 if leaf.is_complex() else torch.float64
            drawn = torch.randn(leaf.shape, generator=generator, dtype=wide)
            values = leaf.detach().to("cpu", wide)
            deviation = float(values.std()) if leaf.numel() > 1 else 0.0
            return (drawn * (deviation or 1.0) + values.mean()).to(leaf.device, leaf.dtype)
        if not whole_numbers:
            return leaf
        order = torch.randint(leaf.numel(), leaf.shape, generator=generator)
        return leaf.flatten()[order.to(leaf.device)]

    nest = dict(example_inputs) if isinstance(example_inputs, dict) else example_inputs
    for _ in range(batches):
        yield [pytree.tree_map(partial(like, whole_numbers=drawn), nest) for drawn in (True, False)]
