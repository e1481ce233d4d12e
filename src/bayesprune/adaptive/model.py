"""``AdaptiveModel``: a network that runs, for every input, only what that input needs."""

import math
import os
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesprune.adaptive.calibration import Calibration, usual_path, wait_for
from bayesprune.adaptive.example_batches import example_batches, needs_of_batches, rows_of
from bayesprune.adaptive.layers import AdaptiveLayer, NothingNeeded
from bayesprune.adaptive.native_layers import NativeLayer
from bayesprune.adaptive.plan import ExecutionPlan, PlannedLayer
from bayesprune.adaptive.rewriting import rewrite
from bayesprune.adaptive.ways import FULL, NATIVE, NATIVE_WHOLE
from bayesprune.compact import compact
from bayesprune.compact.certificate import tensor_arguments
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.example_inputs import ExampleInputs, batch_size
from bayesprune.gates import require_gates
from bayesprune.graph.surroundings import undisturbed

_BATCHES, _ROUNDS = 20, 5
"""Of the example, on which the whole network is timed, and how often each."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_MOST_SETTLED = 64
_WORTHWHILE = 0.9
"""Of its time, what a layer may take in another way: its weights are closer at hand while it is measured than in a network."""


class AdaptiveModel(nn.Module):
    """A network with input-dependent gates that computes, for every input, only what its masks leave.

    What no input needs is removed first. A unit's mask depends on its own activation, so a layer computes all its outputs, and the next
    one reads only those that this input needs: their channels and the matching part of the weights. Whether that is faster depends on the
    layer, on the number of units that are left and on the machine: every layer is measured, once on a machine, and computed in the way
    that is fastest for the input at hand. Where nothing is gained the compacted network runs as it is. ``print(model.plan(1))`` says what
    was chosen.

    For inference: weights are copied into the layout that this needs. Gradients for inputs are those of the compacted network, and under
    autocast, or with hooks on any of its modules, it runs as that does.

    Args:
        model: a model with gates of DBB, as ``make_dependent`` gives it; it is not changed.
        example_inputs: inputs as they will come, a tensor, a tuple of positional arguments or a mapping of keyword arguments. Their masks
            tell what to expect, so the more typical they are, and the more there are, the better.
        batch_sizes: for which ways are chosen; batches of other sizes run as in the compacted network. By default 1, or the example's if
            the model takes no other. See ``prepare``.
        cache: a file that remembers how long layers took; None to measure anew. By default it lies in the user's cache folder.
        native: whether layers may be computed by native code, which is compiled if a C compiler is found.

    Raises:
        InputError: the model has no input-dependent gates, or cannot be compacted.

    Example:
        >>> fast = bp.AdaptiveModel(staged, example_inputs=x)
        >>> print(fast.plan(1))
        >>> fast(x[:1])
    """

    export_advice: ClassVar[str] = (
        "bayesprune.adaptive.export_adaptive_onnx(model, path) writes it for batches of one input, and export_onnx(model.compacted, "
        "example_inputs, path) its compacted network for batches of any size"
    )
    """For whoever would export it like any other model."""

    @undisturbed()
    def __init__(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs,
        *,
        batch_sizes: Sequence[int] | None = None,
        cache: Path | str | None = "",
        native: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputError(f"AdaptiveModel takes an nn.Module, not {type(model).__name__}")
        found = require_gates(model)
        if not any(gate.depends_on_input for gate in found.values()):
            raise InputError(
                "no gate of the model depends on its input, so all inputs need the same: use compact(model).model, or train a second stage "
                "with make_dependent first"
            )
        if cache is not None and not isinstance(cache, (str, os.PathLike)):
            raise InputError(f"cache is the path of a file, or None, not {cache!r}")
        if batch_sizes is not None and (not isinstance(batch_sizes, Sequence) or isinstance(batch_sizes, (str, bytes, bytearray))):
            raise InputError(f"batch_sizes is a sequence of whole numbers, such as (1, 32), not {batch_sizes!r}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no unit is under", BayespruneWarning)  # Then everything depends on the input.
            self.compaction = compact(model, example_inputs)
        compacted: Any = self.compaction.model.eval()
        compacted.requires_grad_(False)
        self.example = tensor_arguments(compacted, example_inputs)
        self._ranks = sorted(each.ndim for each in self.example if isinstance(each, Tensor))
        self.compacted = compacted
        self.native = native
        self._rewrite()
        self.calibration = Calibration(None if cache is None else Path(cache) if cache else usual_path())
        self.plans: dict[int, ExecutionPlan] = {}
        self._programs: dict[int, Callable[..., Any]] = {}
        self._natively: dict[int, list[NativeLayer]] = {}
        self._settled: dict[Any, Any] = {}
        self.eval()
        self.register_load_state_dict_post_hook(_refresh)  # type: ignore[no-untyped-call]
        self.prepare(*(self._usual_sizes() if batch_sizes is None else batch_sizes))

    def _rewrite(self) -> None:
        """Make the adaptive form of the compacted network as it is now."""
        compacted: Any = self.compacted
        self.parts = rewrite(compacted, self.example)
        self.plain, self.masks = self.parts.network, self.parts.masks
        self.network = self.parts.with_layers(self.parts.layers)
        self.layers, self.segments = self.parts.layers, self.parts.segments
        self.natives: Any = nn.ModuleList(native for native in self.parts.natives if native is not None)
        self.unused, self.shapes = self.parts.unused, self.parts.shapes
        self._device = _device_of(compacted)
        self._hooks = _hooks_of(compacted)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._hooks = _hooks_of(self.compacted)  # A graph's copy is made anew, with hooks of its own.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = (*args, *kwargs.values())
        if sorted(each.ndim for each in inputs if isinstance(each, Tensor)) != self._ranks:
            self._refuse(inputs)
        program = self._programs.get(_batch(inputs), self.plain.forward)
        if torch.is_autocast_enabled(self._device.type):
            program = self.plain.forward
        if any(self._hooks):
            program = self.compacted
        try:
            return program(*args, **kwargs)
        except NothingNeeded:
            return self._known_result(args, kwargs)
        except RuntimeError as error:
            given, known = ([each.shape[1:] for each in some if isinstance(each, Tensor)] for some in (inputs, self.example))
            if given != known:
                self._refuse(inputs, error)
            raise

    def _refuse(self, inputs: tuple[Any, ...], error: RuntimeError | None = None) -> NoReturn:
        """Say that inputs are not like the example's, the size of the batch apart."""
        given, known = ([tuple(each.shape) for each in some if isinstance(each, Tensor)] for some in (inputs, self.example))
        raise InputError(
            f"the network does not take inputs of shape {_shown(given)}: its example's were {_shown(known)}, and the batch may differ"
        ) from error

    @undisturbed()
    def prepare(self, *batch_sizes: int) -> None:
        """Choose ways for batches of these sizes, which takes a few seconds where layers were not measured before.

        Raises:
            InputError: a size is no whole number of at least one, or the network does not take batches of it.
        """
        for size in batch_sizes:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise InputError(f"the size of a batch is a whole number of at least 1, not {size!r}")
            if not self._takes(size):
                raise InputError(f"the network takes no batches of {size}: its code is for batches of {batch_size(self.example)}")
        for size in dict.fromkeys(batch_sizes):
            if size not in self.plans:
                self.plans[size] = plan = self._planned(size)
                if plan.adaptive:
                    self._programs[size] = self._with_choices(size).forward
        used = {id(native) for size in self._programs for native in self._natively[size]}
        for native in (*self.natives, *self.parts.convolutions):
            if id(native) not in used:
                native.release()
        self.calibration.keep()

    def plan(self, batch_size: int) -> ExecutionPlan:
        """What is done with batches of a size, and why; chosen now if it was not yet."""
        self.prepare(batch_size)
        return self.plans[batch_size]

    @torch.no_grad()
    def units_needed(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """How many units of each layer behind a mask an input needs, of shape (batch,) each."""
        return [(mask != 0).sum(dim=1) for mask in self.masks(*args, **kwargs)]

    def forget_masks(self) -> None:
        """Drop the weights that are kept for masks that come again, for fair timing of inputs that do."""
        for layer in self.layers:
            layer.slices.clear()

    def _usual_sizes(self) -> tuple[int]:
        return (1,) if self._takes(1) else (batch_size(self.example),)

    @torch.no_grad()
    def _takes(self, size: int) -> bool:
        """Whether the network runs on batches of a size: a model's code may be for one only."""
        if size == batch_size(self.example):
            return True
        try:
            self.compacted.forward(*rows_of(self.example, example_batches(batch_size(self.example), size)[0]))
        except Exception:  # noqa: BLE001  Whatever a model raises where a size does not fit.
            return False
        return True

    @torch.no_grad()
    def _planned(self, size: int) -> ExecutionPlan:
        """Measure layers, choose those that gain, and see whether the whole gains."""
        needed = [mask != 0 for mask in self.masks(*self.example)]
        planned, natively = dict[str, PlannedLayer](), list[NativeLayer]()
        for segment, layer, native, mask, (shape, _) in zip(
            self.segments, self.layers, self.parts.natives, needed, self.shapes, strict=True
        ):
            usable = native if native is not None and self.native and native.available else None
            choice = self.calibration.choice(segment, layer, shape, size, usable)
            needs = needs_of_batches(mask, size)
            expected = statistics.fmean(choice.expected(*each) for each in needs)
            way: str = Counter(choice.way_for(*each) or FULL for each in needs).most_common(1)[0][0]
            if expected < _WORTHWHILE * choice.full:
                layer.choices[size] = choice
            else:
                way, expected = FULL, choice.full
            full, expected = choice.besides + choice.full, choice.besides + expected
            if usable is not None and choice.native is not None:
                seconds = statistics.fmean(choice.native.at(total) for _, total in needs)
                if seconds < _WORTHWHILE * expected:
                    way, expected = NATIVE, seconds
                    natively.append(usable)
            counted = float(mask.sum(dim=1).double().mean())
            planned[segment.consumer] = PlannedLayer(segment.name, layer.units, counted, way, 1e6 * full, 1e6 * expected)
        self._plan_convolutions(size, natively, planned)
        self._natively[size] = natively
        whole, adaptive = self._compared(size)
        return ExecutionPlan(size, tuple(planned.values()), tuple(self.unused), whole, adaptive)

    def _plan_convolutions(self, size: int, natively: list[NativeLayer], planned: dict[str, PlannedLayer]) -> None:
        """Let native code compute convolutions of all that they read, where that gains and nothing better was found."""
        spoken_for = {native.consumer for native in natively}
        spoken_for |= {segment.consumer for segment, layer in zip(self.segments, self.layers, strict=True) if size in layer.choices}
        for convolution in self.parts.convolutions if self.native else ():
            if convolution.consumer in spoken_for or not convolution.available:
                continue
            in_torch, seconds = self.calibration.convolution(convolution, self.parts.read_shapes[convolution.read], size)
            if seconds < _WORTHWHILE * in_torch:
                natively.append(convolution)
                units = convolution.layer.in_channels
                before = planned.get(convolution.consumer, PlannedLayer(convolution.name, units, units, NATIVE_WHOLE, 0.0, 0.0))
                planned[convolution.consumer] = replace(before, way=NATIVE_WHOLE, full_us=1e6 * in_torch, expected_us=1e6 * seconds)

    def _with_choices(self, size: int) -> fx.GraphModule:
        return self.parts.with_layers([layer for layer in self.layers if size in layer.choices], self._natively[size])

    def runs_natively(self, layer: AdaptiveLayer, size: int) -> bool:
        """Whether native code computes a layer, for batches of a size."""
        return any(native.layer is layer for native in self._natively.get(size, ()))

    def _compared(self, size: int) -> tuple[float, float | None]:
        """Microseconds of the compacted network and, if layers gain, of the adaptive one, over the example, in turns."""
        gains = bool(self._natively[size]) or any(size in layer.choices for layer in self.layers)
        calls = [self.plain.forward, *([self._with_choices(size).forward] if gains else [])]
        batches = [rows_of(self.example, rows) for rows in example_batches(batch_size(self.example), size)[:_BATCHES]]
        least = [[math.inf] * len(batches) for _ in calls]
        for _ in range(_ROUNDS):
            for number, inputs in enumerate(batches):
                for call, times in zip(calls, least, strict=True):
                    self.forget_masks()
                    started = time.perf_counter()
                    try:
                        call(*inputs)
                        wait_for(self._device)
                    except NothingNeeded:
                        self._known_result(inputs, {})
                    times[number] = min(times[number], 1e6 * (time.perf_counter() - started))
        medians = [statistics.median(times) for times in least]
        return medians[0], medians[1] if gains else None

    def _known_result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result where nothing of the inputs reaches it: the same for all inputs of these sizes."""
        leaves = tree_leaves((args, kwargs))
        if torch.is_grad_enabled() and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return self.plain.forward(*args, **kwargs)  # Gradients are zero, but not the same zeros for all.
        sizes = ((leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        key = (*kwargs, *sizes)
        known = self._settled.get(key)
        if known is None:
            if len(self._settled) >= _MOST_SETTLED:
                self._settled.clear()
            known = self._settled[key] = self.plain.forward(*args, **kwargs)
        return tree_map_only(Tensor, torch.clone, known)

    def train(self, mode: bool = True) -> "AdaptiveModel":
        """Stays in evaluation mode: it is for inference."""
        return super().train(False)

    @undisturbed()
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AdaptiveModel":
        """Move to another device or type, where everything has to be measured anew."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.example = tree_map_only(Tensor, fn, self.example)
        self._device = _device_of(self.compacted)
        self._forget()
        return self

    def _forget(self) -> None:
        sizes = list(self.plans)
        self._settled.clear()
        self.plans.clear()
        self._programs.clear()
        self._natively.clear()
        for layer in self.layers:
            layer.choices.clear()
        self.prepare(*sizes)


@undisturbed()
def _refresh(model: AdaptiveModel, _keys: Any) -> None:
    """After weights were loaded, of which the adaptive form holds copies."""
    model._rewrite()
    model._forget()


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes)) or "none"


def _batch(inputs: tuple[Any, ...]) -> int:
    if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim:
        return inputs[0].shape[0]
    return next((leaf.shape[0] for leaf in inputs if isinstance(leaf, Tensor) and leaf.ndim), 1)


def _hooks_of(network: nn.Module) -> tuple[dict[int, Any], ...]:
    """All hooks on its modules, those that are yet to come included."""
    return tuple(vars(module)[kind] for kind in _HOOKS for module in network.modules())


def _device_of(network: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*network.parameters(), *network.buffers())), torch.device("cpu"))
