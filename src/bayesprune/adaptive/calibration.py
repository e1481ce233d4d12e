"""How long a layer takes in each way, measured once on the machine at hand."""

import contextlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.adaptive.choice import Choice, Line
from bayesprune.adaptive.layers import AdaptiveLayer, needed_units
from bayesprune.adaptive.native_convolutions import PlainConvolution
from bayesprune.adaptive.native_layers import GatedLayer
from bayesprune.adaptive.segments import Segment
from bayesprune.adaptive.ways import FUSED
from bayesprune.errors import StorageError
from bayesprune.storage import make_folder, write_bytes
from bayesprune.version import __version__

_SHARES = (0.0, 0.125, 0.25, 0.5, 0.75)
"""Of the units, at which ways are measured."""
_SECONDS = 0.004
"""For one point of a line."""
_CALLS = (5, 200)
"""At least and at most."""


class Calibration:
    """Measures layers, and remembers what it has measured, in a file if it has one.

    A file that cannot be read, or not be written, costs no more than the time to measure again.

    Args:
        path: of the file; None to remember nothing beyond the process.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Any] = self._read()
        self._measured = False

    def choice(self, segment: Segment, layer: AdaptiveLayer, shape: torch.Size, batch: int, native: GatedLayer | None = None) -> Choice:
        """What is known about a layer and batches of a size.

        Args:
            segment: what the layer stands for.
            layer: that computes it.
            shape: of the activation that is masked, for any batch.
            batch: the size of the batches.
            native: native code that computes it, if there is any.
        """
        like = layer.by_unit
        key = f"{_machine(like.device)}; {_signature(segment, layer, shape, native)}; batch {batch}"
        found: Any = self._known.get(key)
        if not _is_sound(found, layer, native):
            found = self._known[key] = _measure(layer, torch.Size((batch, *shape[1:])), native)
            self._measured = True
        ways = {way: Line(*found["ways"][way]) for way in layer.ways}
        known = Choice(batch, found["full"], found["look"], ways)
        return known if native is None else replace(known, native=Line(*found["native"]), besides=found["besides"])

    def convolution(self, convolution: PlainConvolution, shape: torch.Size, batch: int) -> tuple[float, float]:
        """Seconds of a convolution by torch and by native code.

        Args:
            convolution: for which there is native code.
            shape: of what it reads, for any batch.
            batch: the size of the batches.
        """
        own = convolution.layer
        normed = "" if convolution.weights.norm is None else ", normalised"
        about = f"{convolution.steps} of {tuple(own.weight.shape)}{normed} from {tuple(shape[1:])}, {own.weight.dtype}"
        key = f"{_machine(own.weight.device)}; {about}; batch {batch}"
        found: Any = self._known.get(key)
        if not (isinstance(found, list) and len(found) == 2 and all(map(_is_seconds, found))):
            x = torch.randn((batch, *shape[1:]), generator=torch.Generator().manual_seed(0)).to(own.weight)
            with torch.no_grad():
                found = [_seconds(lambda call=call: call(x), x.device) for call in (convolution.in_torch, convolution)]  # type: ignore[misc]
            self._known[key], self._measured = found, True
        return found[0], found[1]

    def keep(self) -> None:
        """Write down what was measured."""
        if self.path is None or not self._measured:
            return
        with contextlib.suppress(StorageError, OSError):
            make_folder(self.path.parent)
            write_bytes(self.path, json.dumps(self._read() | self._known, indent=0).encode())
            self._measured = False

    def _read(self) -> dict[str, Any]:
        if self.path is None or not self.path.is_file():  # Devices may be read without end.
            return {}
        try:
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def usual_path() -> Path | None:
    """The file in the user's cache folder; None for a user without a home, as in some containers."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(folder) / "bayesprune" / "calibration.json"


@torch.no_grad()
def _measure(layer: AdaptiveLayer, shape: torch.Size, native: GatedLayer | None = None) -> dict[str, Any]:
    like = layer.by_unit
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(like.device, like.dtype)
    full_mask = torch.ones((shape[0], layer.units), device=like.device, dtype=like.dtype)
    full = _seconds(lambda: layer.in_full(x, full_mask), like.device)
    points: dict[str, list[tuple[float, float]]] = {way: [] for way in layer.ways}
    looks, natively = [], []
    for share in _SHARES:
        count = round(share * layer.units)
        units = torch.randperm(layer.units, generator=generator)[:count].sort().values.to(like.device)
        mask = torch.zeros_like(full_mask).index_fill_(1, units, 0.5)
        looks.append(_seconds(lambda mask=mask: needed_units(mask), like.device))  # type: ignore[misc]
        for way in layer.ways:
            seconds = _seconds(lambda way=way, mask=mask, units=units: _fresh(layer, way, x, mask, units), like.device)  # type: ignore[misc]
            points[way].append((count * (shape[0] if way == FUSED else 1), seconds))
        if native is not None:
            rule = torch.stack([torch.zeros_like(mask[0]), mask[0], full_mask[0]])
            seconds = _seconds(lambda rule=rule: native.computed(x, rule), like.device)  # type: ignore[misc]
            natively.append((float(count * shape[0]), seconds))
    found = {
        "full": full,
        "look": statistics.median(looks),
        "ways": {way: _written(of_way) for way, of_way in points.items()},
    }
    if native is None:
        return found
    result = layer.in_full(x, full_mask)
    besides = _seconds(lambda: native.besides(x, result), like.device)
    return {**found, "native": _written(natively), "besides": besides}


def _written(points: list[tuple[float, float]]) -> list[float]:
    line = Line.through(points)
    return [line.start, line.slope]


def _fresh(layer: AdaptiveLayer, way: Any, x: Tensor, mask: Tensor, units: Tensor) -> Tensor:
    """Without anything that was kept from the call before: masks seldom come again at once."""
    layer.slices.clear()
    return layer.from_units(way, x, mask, units)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The least of some calls, after two that do not count: what other programs add to a call is not the layer's."""
    taken: list[float] = []
    for _ in range(2):
        call()
    end = time.perf_counter() + _SECONDS
    while len(taken) < _CALLS[0] or (time.perf_counter() < end and len(taken) < _CALLS[1]):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        taken.append(time.perf_counter() - started)
    return min(taken)


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was asked to do; a processor has, when a call returns."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.node()} {platform.machine()}"
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, bayesprune {__version__}"


def _signature(segment: Segment, layer: AdaptiveLayer, shape: torch.Size, native: GatedLayer | None) -> str:
    """All that the time of a layer depends on."""
    own: Any = layer.layer
    about = f"{type(own).__name__} {tuple(own.weight.shape)}"
    if not isinstance(own, nn.Linear):
        about += f" {own.stride} {own.padding} {own.dilation}"
    between = " ".join(name.rstrip("_0123456789") for name in segment.path[1:])
    around = "" if native is None else f", {'rectified' if native.rectified else 'as it is'}, {native.replaces != native.consumer}"
    return f"{about} from {tuple(shape[1:])} with {layer.units} units, {between or 'nothing'} between, {layer.by_unit.dtype}{around}"


def _is_sound(found: Any, layer: AdaptiveLayer, native: GatedLayer | None) -> bool:
    """Whether a file's entry is one that could have been written for a layer."""
    try:
        lines = [*(found["ways"][way] for way in layer.ways), *([] if native is None else [found["native"]])]
        more = [] if native is None else [found["besides"]]
        numbers = [found["full"], found["look"], *more, *(number for start, slope in lines for number in (start, slope))]
        return all(map(_is_seconds, numbers))
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def _is_seconds(number: Any) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number)
