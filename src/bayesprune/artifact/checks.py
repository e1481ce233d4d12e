"""Small checks of JSON that came out of a file."""

import reprlib
from collections.abc import Collection
from typing import Any

from bayesprune.artifact.values import MalformedError

_SHORT = reprlib.Repr()
_SHORT.maxstring = 60


def shown(data: Any) -> str:
    """Data of any kind, as it is quoted in a message: short, on one line and without control characters."""
    return _SHORT.repr(data)


def mapping(data: Any, where: str) -> dict[str, Any]:
    """The data, which must be a JSON object."""
    if not isinstance(data, dict):
        raise MalformedError(f"'{where}' is missing or is no mapping")
    return data


def entries(data: Any, where: str) -> list[Any]:
    """The data, which must be a JSON array."""
    if not isinstance(data, list):
        raise MalformedError(f"'{where}' is missing or is no list")
    return data


def text(data: Any, where: str) -> str:
    """The data, which must be a string."""
    if not isinstance(data, str):
        raise MalformedError(f"{where} is no text")
    return data


def flag(data: Any, where: str) -> bool:
    """The data, which must be true or false."""
    if not isinstance(data, bool):
        raise MalformedError(f"{where} is neither true nor false")
    return data


def whole(data: Any, where: str, lowest: int, highest: int) -> int:
    """The data, which must be a whole number between two others."""
    if type(data) is not int or not lowest <= data <= highest:
        raise MalformedError(f"{where} is no whole number between {lowest} and {highest}")
    return data


def fields(data: Any, where: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The data, which must be a JSON object with these fields."""
    given = mapping(data, where)
    wrong = [name for name in required if name not in given] + [
        name[:60] for name in given if name not in required and name not in optional
    ]
    if wrong:
        raise MalformedError(f"{where} lacks a field or has one too many: {wrong[0]!r}")
    return given
