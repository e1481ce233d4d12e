"""``cost``: what any model computes, stores and holds in memory, counted while it runs."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bayesprune.cost.activations import ActivationMemory
from bayesprune.cost.operators import flop_formulas
from bayesprune.cost.paper import PaperCost, paper_cost
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, batch_size, call
from bayesprune.gates import unwrapped
from bayesprune.models.description import DescribedModel
from bayesprune.prediction import evaluating
from bayesprune.state import as_before
from bayesprune.text_table import text_table


@dataclass(frozen=True)
class Cost:
    """The cost of a model as it is, gates and all. Prints as a table.

    Attributes:
        macs: multiply-accumulates for one input: those of linear layers, convolutions, attention, recurrent layers and other products of
            matrices, products with a zero of the padding included. Biases, norms, activations, poolings and gates are not counted.
        parameters: numbers that are learned; a tied parameter counts once.
        bytes: parameters and buffers as they lie in memory; a shared storage counts once.
        activation_bytes: memory for the intermediate results of one input, in the moment when a forward without gradients needs most of
            it; the input itself, and what kernels allocate for themselves, are not part of it, and transformer layers count unfused.
        paper: the cost of the whole network in the paper's convention, where the model states its layers.
    """

    macs: int
    parameters: int
    bytes: int
    activation_bytes: int
    paper: PaperCost | None = None

    @property
    def flops(self) -> int:
        """Two for each multiply-accumulate. The paper's FLOPs, which count biases and activations as well, are ``paper.flops``."""
        return 2 * self.macs

    def relative_to(self, full: "Cost") -> "CostReduction":
        """How many times less this is than another cost, usually that of the model before its units were removed."""
        return CostReduction(full, self)

    def __str__(self) -> str:
        rows = [
            ("MACs", f"{self.macs:,}", f"for one input; {self.flops:,} FLOPs"),
            ("parameters", f"{self.parameters:,}", "tied ones once"),
            ("stored", _readable(self.bytes), "parameters and buffers"),
            ("activations", _readable(self.activation_bytes), "at the peak, for one input"),
        ]
        if self.paper is not None:
            rows.append(("paper's FLOPs", f"{self.paper.flops:,.0f}", f"and {self.paper.memory:,.0f} floats of memory"))
        return text_table(rows, "<><")


@dataclass(frozen=True)
class CostReduction:
    """How many times less one model costs than another: 2.0 is half; infinity where nothing is left. Prints as a sentence.

    Attributes:
        full: the cost of the other model, usually the one before its units were removed.
        small: the cost of this one.
    """

    full: Cost
    small: Cost

    @property
    def macs(self) -> float:
        return _times(self.full.macs, self.small.macs)

    @property
    def parameters(self) -> float:
        return _times(self.full.parameters, self.small.parameters)

    @property
    def bytes(self) -> float:
        return _times(self.full.bytes, self.small.bytes)

    @property
    def activation_bytes(self) -> float:
        return _times(self.full.activation_bytes, self.small.activation_bytes)

    def __str__(self) -> str:
        full, small = self.full, self.small
        changes = (
            (f"MACs {full.macs:,} -> {small.macs:,}", self.macs),
            (f"parameters {full.parameters:,} -> {small.parameters:,}", self.parameters),
            (f"stored {_readable(full.bytes)} -> {_readable(small.bytes)}", self.bytes),
            (f"activations {_readable(full.activation_bytes)} -> {_readable(small.activation_bytes)}", self.activation_bytes),
        )
        return ", ".join(f"{change} ({times:.2f}x)" if math.isfinite(times) else change for change, times in changes)


def cost(model: nn.Module, example_inputs: ExampleInputs, *, batch: int | None = None) -> Cost:
    """Count what a model costs, by running it once in evaluation mode without gradients; afterwards it is as it was.

    What is executed is what is counted. A model with gates multiplies all its units, the pruned ones too, and costs as much as without
    gates: ``summary`` says what it would cost without the pruned units, ``compact`` removes them. Numbers for one input are those of the
    batch divided by its size.

    Args:
        model: any module, on any device, of any dtype.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        batch: how many inputs that is: by default the size of dimension 0 of the first tensor.

    Raises:
        InputError: the model does not run on the inputs.

    Example:
        >>> print(cost(model, torch.rand(1, 3, 32, 32)))
        >>> print(cost(small, x).relative_to(cost(model, x)))
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"cost takes an nn.Module, not {type(model).__name__}")
    model = unwrapped(model)
    inputs = batch_size(example_inputs) if batch is None else batch
    if not isinstance(inputs, int) or isinstance(inputs, bool) or inputs < 1:
        raise InputError(f"batch is how many inputs example_inputs holds, a whole number of at least 1, not {inputs!r}")
    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    memory = ActivationMemory()
    with torch.no_grad(), evaluating(model), as_before(model), _frozen(model), _every_operator_visible(), counter, memory:
        call(model, example_inputs)
    return Cost(
        macs=round(counter.get_total_flops() / 2 / inputs),
        parameters=_parameters(model),
        bytes=_stored_bytes(model),
        activation_bytes=round(memory.peak / inputs),
        paper=paper_cost(model.layers()) if isinstance(model, DescribedModel) else None,
    )


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for gradients: a view of one that does, made without gradients, is something the counter cannot take."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _every_operator_visible() -> Iterator[None]:
    """Transformer layers as separate operators: their fused form, which evaluation mode prefers, cannot be looked into."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            # A compiled part of a model runs uncompiled while operators are watched; that the counter's hooks see it twice does no harm.
            warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _parameters(model: nn.Module) -> int:
    """Parameters that are the same numbers in memory are tied, whether or not they are the same object."""
    sizes = {(p.untyped_storage()._cdata, p.storage_offset(), p.shape, p.stride()): p.numel() for p in model.parameters()}
    return sum(sizes.values())


def _stored_bytes(model: nn.Module) -> int:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())}
    return sum(storage.nbytes() for storage in storages.values())


def _times(full: int, small: int) -> float:
    if small == 0:
        return 1.0 if full == 0 else float("inf")
    return full / small


def _readable(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} B"
