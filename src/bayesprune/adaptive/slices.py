"""Parts of a convolution's weights, kept for masks that come again."""

from collections import OrderedDict
from threading import Lock
from typing import Any

import torch
from torch import Tensor

_BYTES = 32 * 2**20


class Slices:
    """The weights of the masks that were seen last, as many as fit; threads may share them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def of(self, units: Tensor, by_unit: Tensor) -> Tensor:
        """The weights of these units as a convolution takes them: (outputs, inputs, ...)."""
        if (torch.is_grad_enabled() and by_unit.requires_grad) or units.device.type != "cpu":
            return _cut(units, by_unit)
        key = units.numpy().tobytes()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        part = _cut(units, by_unit)
        with self._lock:
            if key not in self._kept and part.nbytes <= _BYTES:
                self._kept[key] = part
                self._bytes += part.nbytes
            while self._bytes > _BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return part

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, _state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Slices":
        return Slices()


def _cut(units: Tensor, by_unit: Tensor) -> Tensor:
    with torch.inference_mode(False):  # They may be kept for a call that is differentiated.
        return by_unit.index_select(0, units).flatten(0, 1).movedim(-1, 0).contiguous()
