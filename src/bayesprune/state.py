"""What the code of a model writes into the model when it is called: noticed, and undone."""

import itertools
import sys
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

_CONTAINERS = (list, dict, set, deque)
_OF_OTHERS = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose objects are left alone: locks, loggers, devices and the like."""
_OWN = (nn.Module, SimpleNamespace, UserDict, UserList)
_MOST_PARTS, _MOST_ELEMENTS = 10_000, 10_000_000
"""Of one module, one container below its attributes, one array there: whoever keeps more keeps data there, and it is left alone."""
_MISSING = object()


@contextmanager
def as_before(model: nn.Module) -> Iterator["State"]:
    """Whatever happens to the model within is undone: buffers, attributes, and what is in them; parameters keep what is in them."""
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
        seen = {id(module) for module in model.modules()}
        self._kept = {path: _Kept(vars(module), seen) for path, module in parts.items()}

    def written(self) -> list[str]:
        """The paths of buffers and other attributes that were written since then, whether or not their values changed."""
        return [f"{path}.{name}" if path else name for path, kept in self._kept.items() for name in kept.written()]

    def restore(self) -> None:
        """Make everything as it was."""
        for kept in self._kept.values():
            kept.restore()


class _Kept:
    """The attributes of one module."""

    def __init__(self, attributes: dict[str, Any], seen: set[int]) -> None:
        self.now, self.before = attributes, dict(attributes)
        self.contents = {name: _Contents(value) for name, value in attributes.items() if _is_container(value)}
        named = (*attributes.items(), *attributes.get("_buffers", {}).items())
        self.tensors = {name: _Values(value) for name, value in named if _has_values(value)}
        seen.update(id(value) for _, value in named if _is_container(value) or _has_values(value))
        below = {name: itertools.islice(_below(value, seen), _MOST_PARTS) for name, value in attributes.items() if name != "_buffers"}
        self.below = {name: parts for name, found in below.items() if (parts := list(found))}

    def written(self) -> list[str]:
        buffers, known = self.now["_buffers"], dict(zip(*2 * [iter(self.contents["_buffers"].items)], strict=True))
        names = [name for name in {**known, **buffers} if buffers.get(name, _MISSING) is not known.get(name, _MISSING)]
        names += [name for name in {**self.before, **self.now} if self.now.get(name, _MISSING) is not self.before.get(name, _MISSING)]
        names += [name for name, held in self.contents.items() if name != "_buffers" and held.were_written()]
        names += [name for name, values in self.tensors.items() if values.were_written()]
        names += [name for name, parts in self.below.items() if any(part.were_written() for part in parts)]
        return list(dict.fromkeys(names))

    def restore(self) -> None:
        for name in self.now.keys() - self.before.keys():
            del self.now[name]
        self.now.update(self.before)
        for part in itertools.chain(self.contents.values(), self.tensors.values(), *self.below.values()):
            part.restore()


class _Contents:
    """What is in a container."""

    def __init__(self, container: Any) -> None:
        self.container, self.items = container, _items(container)

    def were_written(self) -> bool:
        return not _same(_items(self.container), self.items)

    def restore(self) -> None:
        if self.were_written():
            _refill(self.container, self.items)


class _Numbers:
    """The elements of an array of numpy."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.elements = array, array.copy()

    def were_written(self) -> bool:
        return self.array.tobytes() != self.elements.tobytes()

    def restore(self) -> None:
        if self.array.flags.writeable and self.array.shape == self.elements.shape:
            self.array[...] = self.elements


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
            with torch.inference_mode() if self.tensor.is_inference() else torch.no_grad():
                self.tensor.copy_(self.elements)

    def _differ(self) -> bool:
        a, b = self.tensor.detach(), self.elements
        return a.shape != b.shape or not bool(((a == b) | ((a != a) & (b != b))).all())


def _has_values(value: object) -> TypeGuard[Tensor]:
    if type(value) is not Tensor or value.is_meta or value.is_quantized or value.layout is not torch.strided:
        return False
    return all(step > 0 for size, step in zip(value.shape, value.stride(), strict=True) if size > 1)  # Else elements are the same one.


def _version(tensor: Tensor) -> int:
    """How often torch saw the tensor written."""
    return 0 if tensor.is_inference() else tensor._version


def _below(value: object, seen: set[int]) -> Iterator["_Contents | _Numbers | _Values"]:
    """All that can be written into below an attribute, each once: what is in containers and objects, and what is in that."""
    waiting = [value] if type(value) is np.ndarray else _inside(value)
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _has_values(part):
            if part.numel() <= _MOST_ELEMENTS:
                yield _Values(part)
        elif type(part) is np.ndarray:
            if part.size <= _MOST_ELEMENTS:
                yield _Numbers(part)
        elif not issubclass(type(part), LazyModuleMixin):
            if _is_container(part) and len(part) <= _MOST_PARTS:
                yield _Contents(part)
            waiting += _inside(part)


def _inside(value: object) -> list[Any]:
    """What a container holds, and the attributes of a module or of an object of somebody's own."""
    kind = type(value)
    held = _items(value) if issubclass(kind, (tuple, *_CONTAINERS)) and len(value) <= _MOST_PARTS else []  # type: ignore[arg-type]
    foreign = issubclass(kind, (type, Tensor)) or kind.__module__.partition(".")[0] in _OF_OTHERS
    if foreign and not issubclass(kind, _OWN):
        return held
    try:
        return [*held, object.__getattribute__(value, "__dict__")]
    except AttributeError:
        return held


def _items(container: Any) -> list[Any]:
    """Past whatever a class of somebody's own makes of that."""
    kind = _kind(container)
    return [part for item in kind.items(container) for part in item] if issubclass(kind, dict) else list(kind.__iter__(container))


def _is_container(value: object) -> bool:
    """By its type, and not by what it says of itself, which may be anything."""
    return issubclass(type(value), _CONTAINERS)


def _kind(container: Any) -> Any:
    return next(each for each in (OrderedDict, *_CONTAINERS, tuple) if issubclass(type(container), each))


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _refill(container: Any, items: list[Any]) -> None:
    """Put items back, past whatever a class of somebody's own makes of that."""
    kind = _kind(container)
    kind.clear(container)
    if isinstance(container, dict):
        for key, value in zip(items[::2], items[1::2], strict=True):
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        kind.update(container, items)
    else:
        kind.extend(container, items)
