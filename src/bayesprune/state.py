"""What the code of a model writes into the model when it is called: noticed, and undone."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)
_MISSING = object()


@contextmanager
def as_before(model: nn.Module) -> Iterator["State"]:
    """Whatever happens to the model within is undone: buffers, attributes, and what is in its lists; parameters keep what is in them."""
    state = State(model)
    try:
        yield state
    finally:
        state.restore()


class State:
    """What the modules of a model held at one moment."""

    def __init__(self, model: nn.Module) -> None:
        # Layers that find out their sizes in their first call become others in it, for good.
        parts = {path: module for path, module in model.named_modules() if not isinstance(module, LazyModuleMixin)}
        self._kept = {path: _Kept(vars(module)) for path, module in parts.items()}

    def written(self) -> list[str]:
        """The paths of buffers and other attributes that were written since then, whether or not their values changed."""
        return [f"{path}.{name}" if path else name for path, kept in self._kept.items() for name in kept.written()]

    def restore(self) -> None:
        """Make everything as it was."""
        for kept in self._kept.values():
            kept.restore()


class _Kept:
    """The attributes of one module."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.now, self.before = attributes, dict(attributes)
        self.contents = {name: _items(value) for name, value in attributes.items() if type(value) in _CONTAINERS}
        named = (*attributes.items(), *attributes.get("_buffers", {}).items())
        self.tensors = {name: _Values(value) for name, value in named if _has_values(value)}

    def written(self) -> list[str]:
        buffers, known = self.now.get("_buffers", {}), dict(zip(*2 * [iter(self.contents.get("_buffers", ()))], strict=True))
        names = [name for name in {**known, **buffers} if buffers.get(name, _MISSING) is not known.get(name, _MISSING)]
        names += [name for name in {**self.before, **self.now} if self.now.get(name, _MISSING) is not self.before.get(name, _MISSING)]
        names += [name for name, items in self.contents.items() if name != "_buffers" and not _same(_items(self.before[name]), items)]
        names += [name for name, values in self.tensors.items() if values.were_written()]
        return list(dict.fromkeys(names))

    def restore(self) -> None:
        for name in self.now.keys() - self.before.keys():
            del self.now[name]
        self.now.update(self.before)
        for name, items in self.contents.items():
            if not _same(_items(self.before[name]), items):
                _refill(self.before[name], items)
        for values in self.tensors.values():
            values.restore()


class _Values:
    """The elements of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.elements = tensor, tensor.detach().clone()
        self.version = _version(tensor)

    def were_written(self) -> bool:
        return _version(self.tensor) != self.version or self._differ()

    def restore(self) -> None:
        if self.tensor.shape != self.elements.shape or self.tensor.dtype != self.elements.dtype:
            self.tensor.data = self.elements
        elif self._differ():
            with torch.no_grad():
                self.tensor.copy_(self.elements)

    def _differ(self) -> bool:
        a, b = self.tensor.detach(), self.elements
        return a.shape != b.shape or not bool(((a == b) | ((a != a) & (b != b))).all())


def _has_values(value: object) -> bool:
    return type(value) is Tensor and not value.is_meta and not value.is_quantized and value.layout is torch.strided


def _version(tensor: Tensor) -> int:
    """How often torch saw the tensor written."""
    return 0 if tensor.is_inference() else tensor._version


def _items(container: Any) -> list[Any]:
    return [part for item in container.items() for part in item] if isinstance(container, dict) else list(container)


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _refill(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        container.update(zip(items[::2], items[1::2], strict=True))
    elif isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)
