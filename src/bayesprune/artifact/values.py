"""The values that a description may contain, as JSON and back.

A closed list: numbers, booleans, None, short strings, sequences, mappings, slices, types of tensors, references to earlier steps, and the
shape of an example input. Reading one can build nothing else, however the JSON was written.
"""

import math
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

MAX_DEPTH = 12
MAX_ENTRIES = 20_000
MAX_TEXT = 1_000
LARGEST_INT = 2**63 - 1
LARGEST_ELEMENTS = 2**48

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class MalformedError(ValueError):
    """A part of a description is not what it should be; the message says which and why."""


@dataclass(frozen=True)
class Reference:
    """What an earlier step computed, or an input."""

    name: str


@dataclass(frozen=True)
class TensorShape:
    """What is known of a tensor without its elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def encode(value: Any) -> Any:
    """A value as JSON.

    Raises:
        MalformedError: it is none of the values that a description may contain.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    if isinstance(value, list):
        return {"list": [encode(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(_key(key)), encode(each)] for key, each in value.items()]}
    if isinstance(value, slice):
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, Reference):
        return {"step": value.name}
    if isinstance(value, TensorShape):
        return {"tensor": [list(value.shape), dtype_name(value.dtype)]}
    raise MalformedError(f"a value of type {type(value).__name__} cannot be written into a description")


def decode(data: Any, text: Callable[[str], bool] = lambda _: False, depth: int = MAX_DEPTH) -> Any:
    """The value that a piece of JSON stands for.

    Args:
        data: what ``json.loads`` gave.
        text: says which strings are allowed here.
        depth: how deep it may be nested.
    """
    if depth == 0:
        raise MalformedError(f"values are nested more than {MAX_DEPTH} deep")
    if data is None or isinstance(data, (bool, float)):
        return data
    if isinstance(data, int):
        return _whole(data)
    if isinstance(data, str):
        if len(data) > MAX_TEXT or not text(data):
            raise MalformedError(f"the text {reprlib.repr(data)} is not allowed here")
        return data
    if isinstance(data, list):
        return tuple(decode(each, text, depth - 1) for each in _entries(data))
    if isinstance(data, dict) and len(data) == 1:
        ((kind, content),) = data.items()
        if kind in _DECODERS:
            return _DECODERS[kind](content, text, depth - 1)
    raise MalformedError(f"{reprlib.repr(data)} is no value")


def at_most(most: int, data: Any) -> bool:
    """Whether a piece of JSON consists of at most so many values."""
    waiting = [data]
    while waiting and most >= 0:
        inner = waiting.pop()
        most -= 1
        if isinstance(inner, (list, dict)):
            waiting.extend(inner.values() if isinstance(inner, dict) else inner)
    return most >= 0


def references(value: Any) -> Iterator[str]:
    """The names of the steps that a value refers to."""
    if isinstance(value, Reference):
        yield value.name
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict):
        yield from references(list(value.values()))
    elif isinstance(value, slice):
        yield from references((value.start, value.stop, value.step))


def fill(value: Any, results: dict[str, Any]) -> Any:
    """The value with every reference replaced by the result it stands for."""
    kind = type(value)
    if kind is Reference:
        return results[value.name]
    if kind is tuple:
        return tuple([fill(each, results) for each in value])
    if kind is list:
        return [fill(each, results) for each in value]
    if kind is dict:
        return {key: fill(each, results) for key, each in value.items()}
    if kind is slice:
        return slice(fill(value.start, results), fill(value.stop, results), fill(value.step, results))
    return value


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type of tensor, which must be one that can be saved."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise MalformedError(f"tensors of type {name} cannot be saved")
    return name


def dtype_named(name: Any) -> torch.dtype:
    """The type of tensor with this name."""
    if not isinstance(name, str) or name not in DTYPES:
        raise MalformedError(f"{reprlib.repr(name)} is no type of tensor")
    return DTYPES[name]


def sizes(data: Any) -> tuple[int, ...]:
    """The shape of a tensor."""
    fits = isinstance(data, list) and len(data) <= MAX_DEPTH and all(type(size) is int and size >= 0 for size in data)
    if not fits or math.prod(data) > LARGEST_ELEMENTS or max(data, default=0) > LARGEST_ELEMENTS:
        raise MalformedError(f"{reprlib.repr(data)} is no shape of a tensor")
    return tuple(data)


def _whole(value: int) -> int:
    if abs(value) > LARGEST_INT:
        raise MalformedError("a whole number is too large")
    return int(value)


def _key(key: Any) -> str | int:
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return key
    raise MalformedError(f"a mapping has keys of type {type(key).__name__}: only strings and whole numbers can be written")


def _entries(data: Any) -> list[Any]:
    if not isinstance(data, list) or len(data) > MAX_ENTRIES:
        raise MalformedError(f"a sequence is missing or has more than {MAX_ENTRIES} entries")
    return data


def _decode_float(content: Any, _text: Callable[[str], bool], _depth: int) -> float:
    if not isinstance(content, str) or content not in _FLOATS:
        raise MalformedError("a number is neither finite, infinite nor nan")
    return _FLOATS[content]


def _decode_list(content: Any, text: Callable[[str], bool], depth: int) -> list[Any]:
    return [decode(each, text, depth) for each in _entries(content)]


def _decode_dict(content: Any, text: Callable[[str], bool], depth: int) -> dict[str | int, Any]:
    result = {}
    for pair in _entries(content):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], (str, int)) or len(str(pair[0])) > MAX_TEXT:
            raise MalformedError("a mapping has an entry that is no pair of a key and a value")
        result[pair[0]] = decode(pair[1], text, depth)
    return result


def _decode_slice(content: Any, _text: Callable[[str], bool], depth: int) -> slice:
    if not isinstance(content, list) or len(content) != 3:
        raise MalformedError("a slice has three parts: start, stop and step")
    parts = [decode(each, depth=depth) for each in content]
    if not all(part is None or type(part) is int or isinstance(part, Reference) for part in parts):
        raise MalformedError("the parts of a slice are whole numbers or steps")
    return slice(*parts)


def _decode_ellipsis(content: Any, _text: Callable[[str], bool], _depth: int) -> Any:
    if content is not True:
        raise MalformedError("an ellipsis is written as true")
    return Ellipsis


def _decode_step(content: Any, _text: Callable[[str], bool], _depth: int) -> Reference:
    if not isinstance(content, str):
        raise MalformedError("a reference is the name of a step")
    return Reference(content)


def _decode_tensor(content: Any, _text: Callable[[str], bool], _depth: int) -> TensorShape:
    if not isinstance(content, list) or len(content) != 2:
        raise MalformedError("an example of a tensor is its shape and its type")
    return TensorShape(sizes(content[0]), dtype_named(content[1]))


_DECODERS: dict[str, Callable[[Any, Callable[[str], bool], int], Any]] = {
    "float": _decode_float,
    "list": _decode_list,
    "dict": _decode_dict,
    "slice": _decode_slice,
    "ellipsis": _decode_ellipsis,
    "dtype": lambda content, _text, _depth: dtype_named(content),
    "step": _decode_step,
    "tensor": _decode_tensor,
}
